"""Families that are served, by the name of their architecture in a config.json."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ..config_values import ConfigError, Values, read_record
from ..spec import ModelSpec, without_output_layer
from .balanced import (
    Dots1Config,
    Ernie45MoeConfig,
    ExaoneMoeConfig,
    Glm4MoeConfig,
    MiniMaxM2Config,
    SolarOpenConfig,
)
from .bart import BartConfig, MarianConfig, MBartConfig, PegasusConfig, WhisperConfig
from .classic import GPT2Config, GPTNeoXConfig, OPTConfig, PhiConfig
from .cohere import Cohere2Config, CohereConfig
from .decoder import DecoderConfig
from .deepseek import (
    DeepseekV2Config,
    DeepseekV3Config,
    DeepseekV32Config,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    MiniCPM3Config,
    YoutuConfig,
)
from .encoder import (
    AlbertConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    MPNetConfig,
    RobertaConfig,
)
from .exaone import Exaone4Config, ExaoneConfig
from .family import FamilyConfig
from .gemma import Gemma2Config, Gemma3Config, Gemma3TextConfig, GemmaConfig
from .gemma4 import Gemma4Config
from .glm import Glm4Config, GlmConfig
from .gpt import GPTJConfig, GPTNeoConfig
from .gpt_oss import GptOssConfig
from .granite import (
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    HyperCLOVAXConfig,
)
from .hunyuan import HunYuanDenseConfig, HunYuanMoeConfig
from .lfm2 import Lfm2Config, Lfm2MoeConfig
from .like_llama import (
    ArceeConfig,
    CwmConfig,
    Ernie45Config,
    HeliumConfig,
    InternLM2Config,
    InternLM3Config,
    Jais2Config,
    MiniCPMConfig,
    NemotronConfig,
    OlmoConfig,
    SeedOssConfig,
    StableLmConfig,
)
from .llama4 import Llama4TextConfig
from .mamba import BambaConfig, FalconH1Config
from .mistral import Ministral3Config, MinistralConfig, MistralConfig, MixtralConfig
from .modernbert import ModernBertConfig
from .nearest import not_supported
from .nemotron_h import NemotronHConfig
from .olmo import FlexOlmoConfig, Olmo2Config, Olmo3Config, OlmoeConfig
from .phi3 import Phi3Config
from .qwen import Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig
from .qwen_next import Qwen3_5Config, Qwen3_5MoeConfig, Qwen3NextConfig
from .rotary_encoders import GteConfig, JinaEmbeddingsV3Config, NomicBertConfig
from .slopes import BaichuanConfig, BloomConfig, FalconConfig, MptConfig
from .smollm3 import SmolLM3Config
from .starcoder import GPTBigCodeConfig, Starcoder2Config
from .t5 import T5Config
from .text_part import text_part
from .vision import vision_of

# Rows by the name of the class: `model_type`, and the reader of its config.json.
_DECODERS: dict[str, tuple[str, type[DecoderConfig]]] = {
    "LlamaForCausalLM": ("llama", DecoderConfig),
    "MistralForCausalLM": ("mistral", MistralConfig),
    "MinistralForCausalLM": ("ministral", MinistralConfig),
    "Ministral3ForCausalLM": ("ministral3", Ministral3Config),
    "MixtralForCausalLM": ("mixtral", MixtralConfig),
    "Qwen2ForCausalLM": ("qwen2", Qwen2Config),
    "Qwen2MoeForCausalLM": ("qwen2_moe", Qwen2MoeConfig),
    "Qwen3ForCausalLM": ("qwen3", Qwen3Config),
    "Qwen3MoeForCausalLM": ("qwen3_moe", Qwen3MoeConfig),
    "Qwen3NextForCausalLM": ("qwen3_next", Qwen3NextConfig),
    "Qwen3_5ForCausalLM": ("qwen3_5_text", Qwen3_5Config),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text", Qwen3_5MoeConfig),
    "Lfm2ForCausalLM": ("lfm2", Lfm2Config),
    "Lfm2MoeForCausalLM": ("lfm2_moe", Lfm2MoeConfig),
    "BambaForCausalLM": ("bamba", BambaConfig),
    "FalconH1ForCausalLM": ("falcon_h1", FalconH1Config),
    "NemotronHForCausalLM": ("nemotron_h", NemotronHConfig),
    "GemmaForCausalLM": ("gemma", GemmaConfig),
    "Gemma2ForCausalLM": ("gemma2", Gemma2Config),
    "Gemma3ForCausalLM": ("gemma3_text", Gemma3Config),
    "Gemma4ForCausalLM": ("gemma4_text", Gemma4Config),
    "Phi3ForCausalLM": ("phi3", Phi3Config),
    "GraniteForCausalLM": ("granite", GraniteConfig),
    "GraniteMoeForCausalLM": ("granitemoe", GraniteMoeConfig),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", GraniteMoeHybridConfig),
    "Olmo2ForCausalLM": ("olmo2", Olmo2Config),
    "Olmo3ForCausalLM": ("olmo3", Olmo3Config),
    "OlmoeForCausalLM": ("olmoe", OlmoeConfig),
    "GptOssForCausalLM": ("gpt_oss", GptOssConfig),
    "SmolLM3ForCausalLM": ("smollm3", SmolLM3Config),
    "Llama4ForCausalLM": ("llama4_text", Llama4TextConfig),
    "GPT2LMHeadModel": ("gpt2", GPT2Config),
    "OPTForCausalLM": ("opt", OPTConfig),
    "GPTNeoXForCausalLM": ("gpt_neox", GPTNeoXConfig),
    "PhiForCausalLM": ("phi", PhiConfig),
    "CohereForCausalLM": ("cohere", CohereConfig),
    "Cohere2ForCausalLM": ("cohere2", Cohere2Config),
    "SeedOssForCausalLM": ("seed_oss", SeedOssConfig),
    "GlmForCausalLM": ("glm", GlmConfig),
    "Glm4ForCausalLM": ("glm4", Glm4Config),
    "ExaoneForCausalLM": ("exaone", ExaoneConfig),
    "Exaone4ForCausalLM": ("exaone4", Exaone4Config),
    "InternLM2ForCausalLM": ("internlm2", InternLM2Config),
    "InternLM3ForCausalLM": ("internlm3", InternLM3Config),
    "MiniCPMForCausalLM": ("minicpm", MiniCPMConfig),
    "CwmForCausalLM": ("cwm", CwmConfig),
    "ArceeForCausalLM": ("arcee", ArceeConfig),
    "Jais2ForCausalLM": ("jais2", Jais2Config),
    "NemotronForCausalLM": ("nemotron", NemotronConfig),
    "StableLmForCausalLM": ("stablelm", StableLmConfig),
    "HeliumForCausalLM": ("helium", HeliumConfig),
    "OlmoForCausalLM": ("olmo", OlmoConfig),
    "Ernie4_5ForCausalLM": ("ernie4_5", Ernie45Config),
    "Ernie4_5_MoeForCausalLM": ("ernie4_5_moe", Ernie45MoeConfig),
    "Glm4MoeForCausalLM": ("glm4_moe", Glm4MoeConfig),
    "SolarOpenForCausalLM": ("solar_open", SolarOpenConfig),
    "Dots1ForCausalLM": ("dots1", Dots1Config),
    "ExaoneMoeForCausalLM": ("exaone_moe", ExaoneMoeConfig),
    "MiniMaxM2ForCausalLM": ("minimax_m2", MiniMaxM2Config),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense", HunYuanDenseConfig),
    "HunYuanMoEV1ForCausalLM": ("hunyuan_v1_moe", HunYuanMoeConfig),
    "HyperCLOVAXForCausalLM": ("hyperclovax", HyperCLOVAXConfig),
    "GraniteMoeSharedForCausalLM": ("granitemoeshared", GraniteMoeSharedConfig),
    "FlexOlmoForCausalLM": ("flex_olmo", FlexOlmoConfig),
    "Starcoder2ForCausalLM": ("starcoder2", Starcoder2Config),
    "GPTBigCodeForCausalLM": ("gpt_bigcode", GPTBigCodeConfig),
    "GPTJForCausalLM": ("gptj", GPTJConfig),
    "GPTNeoForCausalLM": ("gpt_neo", GPTNeoConfig),
    "FalconForCausalLM": ("falcon", FalconConfig),
    "BloomForCausalLM": ("bloom", BloomConfig),
    "MptForCausalLM": ("mpt", MptConfig),
    "BaichuanForCausalLM": ("baichuan", BaichuanConfig),
    "DeepseekV2ForCausalLM": ("deepseek_v2", DeepseekV2Config),
    "DeepseekV3ForCausalLM": ("deepseek_v3", DeepseekV3Config),
    "DeepseekV32ForCausalLM": ("deepseek_v32", DeepseekV32Config),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", Glm4MoeLiteConfig),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", GlmMoeDsaConfig),
    "MiniCPM3ForCausalLM": ("minicpm3", MiniCPM3Config),
    "YoutuForCausalLM": ("youtu", YoutuConfig),
}
AS_LLAMA = ("exaone", "internlm3")  # types for which transformers writes Llama's class
_ENCODERS: dict[str, tuple[str, type[FamilyConfig]]] = {
    "Bert": ("bert", BertConfig),
    "Roberta": ("roberta", RobertaConfig),
    "XLMRoberta": ("xlm-roberta", RobertaConfig),
    "Camembert": ("camembert", RobertaConfig),
    "MPNet": ("mpnet", MPNetConfig),
    "DistilBert": ("distilbert", DistilBertConfig),
    "ModernBert": ("modernbert", ModernBertConfig),
    "Albert": ("albert", AlbertConfig),
    "Electra": ("electra", ElectraConfig),
    "Ernie": ("ernie", ErnieConfig),
    "NomicBert": ("nomic_bert", NomicBertConfig),
    "JinaEmbeddingsV3": ("jina_embeddings_v3", JinaEmbeddingsV3Config),
    "Gte": ("gte", GteConfig),
    "DebertaV2": ("deberta-v2", DebertaV2Config),
}
_ENCODER_DECODERS: dict[str, tuple[str, type[FamilyConfig]]] = {
    "T5ForConditionalGeneration": ("t5", T5Config),
    "MT5ForConditionalGeneration": ("mt5", T5Config),
    "BartForConditionalGeneration": ("bart", BartConfig),
    "MBartForConditionalGeneration": ("mbart", MBartConfig),
    "MarianMTModel": ("marian", MarianConfig),
    "PegasusForConditionalGeneration": ("pegasus", PegasusConfig),
    "WhisperForConditionalGeneration": ("whisper", WhisperConfig),
}
GENERATORS = {name: family for name, (_, family) in _DECODERS.items()}
ENCODER_DECODERS = {name: family for name, (_, family) in _ENCODER_DECODERS.items()}
ENCODERS = {name: family for name, (_, family) in _ENCODERS.items()}
# Architectures by `model_type`, of files that name no architecture or an unknown one.
ARCHITECTURES = {
    **{model_type: name for name, (model_type, _) in (*_DECODERS.items(), *_ENCODER_DECODERS.items())},
    **{model_type: f"{name}Model" for name, (model_type, _) in _ENCODERS.items()},
}
# Every decoder can embed and classify: its layers without the output layer, under the names of transformers' classes.
HEADLESS: dict[str, type[DecoderConfig]] = {
    name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + ending: family
    for name, family in GENERATORS.items()
    for ending in ("Model", "ForSequenceClassification")
} | dict.fromkeys(("Gemma3TextModel", "Gemma3TextForSequenceClassification"), Gemma3TextConfig)
FAMILIES: dict[str, type[FamilyConfig]] = {
    **GENERATORS,
    **ENCODER_DECODERS,
    **HEADLESS,
    **{
        f"{name}{ending}": family
        for name, family in ENCODERS.items()
        for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
    },
}


def model_spec_of(config: Values) -> ModelSpec:
    """Return the model that `config`, the values of a config.json, describes.

    Of a model with a vision encoder that is not served, only the text's part is read. Raises ConfigError, naming the
    key, the value and the limit, for an unknown architecture, remote code, and values that are out of range,
    contradictory or not implemented.
    """
    vision, config = vision_of(config), text_part(config)
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    for key in ("auto_map", "trust_remote_code"):
        if config.get(key) and not (family.comes_with_code and key == "auto_map"):
            raise ConfigError(f"{key} is set: code that comes with a checkpoint is never run")
    values = {**{own: config[key] for key, own in own_keys(architecture).items() if key in config}, **config}
    spec = replace(read_record(values, family).spec(architecture, values), vision=vision)
    return without_output_layer(spec) if architecture in HEADLESS else spec


def own_keys(architecture: str) -> dict[str, str]:
    """Return the family's names of keys by Llama's names. Llama's keys are read where the family's are missing.

    So a row of the table of public models may say hidden_size where a file says n_embd.
    """
    fields = msgspec.structs.fields(FAMILIES[architecture])
    return {field.name: field.encode_name for field in fields if field.name != field.encode_name}


def _architecture(config: Values) -> str:
    names = config.get("architectures")
    if names == ["LlamaForCausalLM"] and config.get("model_type") in AS_LLAMA:
        return ARCHITECTURES[config["model_type"]]
    if not isinstance(names, list) or not names:
        raise ConfigError("architectures is missing; `neuronserve models` lists those that are supported")
    if not isinstance(names[0], str) or names[0] not in FAMILIES:
        raise ConfigError(not_supported(names[0], config, FAMILIES))
    return names[0]
