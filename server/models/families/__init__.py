"""Families that are served, by the name of their architecture in a config.json."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ..config_values import ConfigError, Values, read_record
from ..spec import ModelSpec, without_output_layer
from . import (
    balanced,
    bart,
    classic,
    cohere,
    deepseek,
    encoder,
    exaone,
    fairseq,
    gemma,
    gemma3n,
    gemma4,
    gpt,
    gpt_oss,
    granite,
    hunyuan,
    lfm2,
    like_llama,
    llama4,
    mamba,
    mistral,
    modernbert,
    nemotron_h,
    olmo,
    phi3,
    qwen,
    qwen_next,
    rotary_encoders,
    slopes,
    starcoder,
    t5,
)
from .decoder import DecoderConfig
from .family import FamilyConfig
from .nearest import not_supported
from .text_part import text_part
from .vision import vision_of

# Rows by the name of the class: `model_type`, and the reader of its config.json.
_DECODERS: dict[str, tuple[str, type[DecoderConfig]]] = {
    "LlamaForCausalLM": ("llama", DecoderConfig),
    "MistralForCausalLM": ("mistral", mistral.MistralConfig),
    "MinistralForCausalLM": ("ministral", mistral.MinistralConfig),
    "Ministral3ForCausalLM": ("ministral3", mistral.Ministral3Config),
    "MixtralForCausalLM": ("mixtral", mistral.MixtralConfig),
    "Qwen2ForCausalLM": ("qwen2", qwen.Qwen2Config),
    "Qwen2MoeForCausalLM": ("qwen2_moe", qwen.Qwen2MoeConfig),
    "Qwen3ForCausalLM": ("qwen3", qwen.Qwen3Config),
    "Qwen3MoeForCausalLM": ("qwen3_moe", qwen.Qwen3MoeConfig),
    "Qwen3NextForCausalLM": ("qwen3_next", qwen_next.Qwen3NextConfig),
    "Qwen3_5ForCausalLM": ("qwen3_5_text", qwen_next.Qwen3_5Config),
    "Qwen3_5MoeForCausalLM": ("qwen3_5_moe_text", qwen_next.Qwen3_5MoeConfig),
    "Lfm2ForCausalLM": ("lfm2", lfm2.Lfm2Config),
    "Lfm2MoeForCausalLM": ("lfm2_moe", lfm2.Lfm2MoeConfig),
    "BambaForCausalLM": ("bamba", mamba.BambaConfig),
    "FalconH1ForCausalLM": ("falcon_h1", mamba.FalconH1Config),
    "NemotronHForCausalLM": ("nemotron_h", nemotron_h.NemotronHConfig),
    "GemmaForCausalLM": ("gemma", gemma.GemmaConfig),
    "Gemma2ForCausalLM": ("gemma2", gemma.Gemma2Config),
    "Gemma3ForCausalLM": ("gemma3_text", gemma.Gemma3Config),
    "VaultGemmaForCausalLM": ("vaultgemma", gemma.VaultGemmaConfig),
    "Gemma3nForCausalLM": ("gemma3n_text", gemma3n.Gemma3nConfig),
    "Gemma4ForCausalLM": ("gemma4_text", gemma4.Gemma4Config),
    "Phi3ForCausalLM": ("phi3", phi3.Phi3Config),
    "PhimoeForCausalLM": ("phimoe", phi3.PhimoeConfig),
    "ApertusForCausalLM": ("apertus", like_llama.ApertusConfig),
    "GraniteForCausalLM": ("granite", granite.GraniteConfig),
    "GraniteMoeForCausalLM": ("granitemoe", granite.GraniteMoeConfig),
    "GraniteMoeHybridForCausalLM": ("granitemoehybrid", granite.GraniteMoeHybridConfig),
    "Olmo2ForCausalLM": ("olmo2", olmo.Olmo2Config),
    "Olmo3ForCausalLM": ("olmo3", olmo.Olmo3Config),
    "OlmoeForCausalLM": ("olmoe", olmo.OlmoeConfig),
    "GptOssForCausalLM": ("gpt_oss", gpt_oss.GptOssConfig),
    "SmolLM3ForCausalLM": ("smollm3", like_llama.SmolLM3Config),
    "Llama4ForCausalLM": ("llama4_text", llama4.Llama4TextConfig),
    "GPT2LMHeadModel": ("gpt2", classic.GPT2Config),
    "OPTForCausalLM": ("opt", classic.OPTConfig),
    "BioGptForCausalLM": ("biogpt", fairseq.BioGptConfig),
    "XGLMForCausalLM": ("xglm", fairseq.XGLMConfig),
    "GPTNeoXForCausalLM": ("gpt_neox", classic.GPTNeoXConfig),
    "PersimmonForCausalLM": ("persimmon", classic.PersimmonConfig),
    "PhiForCausalLM": ("phi", classic.PhiConfig),
    "CohereForCausalLM": ("cohere", cohere.CohereConfig),
    "Cohere2ForCausalLM": ("cohere2", cohere.Cohere2Config),
    "SeedOssForCausalLM": ("seed_oss", like_llama.SeedOssConfig),
    "GlmForCausalLM": ("glm", like_llama.GlmConfig),
    "Glm4ForCausalLM": ("glm4", like_llama.Glm4Config),
    "ExaoneForCausalLM": ("exaone", exaone.ExaoneConfig),
    "Exaone4ForCausalLM": ("exaone4", exaone.Exaone4Config),
    "InternLM2ForCausalLM": ("internlm2", like_llama.InternLM2Config),
    "InternLM3ForCausalLM": ("internlm3", like_llama.InternLM3Config),
    "MiniCPMForCausalLM": ("minicpm", like_llama.MiniCPMConfig),
    "CwmForCausalLM": ("cwm", like_llama.CwmConfig),
    "ArceeForCausalLM": ("arcee", like_llama.ArceeConfig),
    "Jais2ForCausalLM": ("jais2", like_llama.Jais2Config),
    "NemotronForCausalLM": ("nemotron", like_llama.NemotronConfig),
    "StableLmForCausalLM": ("stablelm", like_llama.StableLmConfig),
    "HeliumForCausalLM": ("helium", like_llama.HeliumConfig),
    "OlmoForCausalLM": ("olmo", like_llama.OlmoConfig),
    "Ernie4_5ForCausalLM": ("ernie4_5", like_llama.Ernie45Config),
    "Ernie4_5_MoeForCausalLM": ("ernie4_5_moe", balanced.Ernie45MoeConfig),
    "Glm4MoeForCausalLM": ("glm4_moe", balanced.Glm4MoeConfig),
    "SolarOpenForCausalLM": ("solar_open", balanced.SolarOpenConfig),
    "Dots1ForCausalLM": ("dots1", balanced.Dots1Config),
    "ExaoneMoeForCausalLM": ("exaone_moe", balanced.ExaoneMoeConfig),
    "MiniMaxM2ForCausalLM": ("minimax_m2", balanced.MiniMaxM2Config),
    "HunYuanDenseV1ForCausalLM": ("hunyuan_v1_dense", hunyuan.HunYuanDenseConfig),
    "HunYuanMoEV1ForCausalLM": ("hunyuan_v1_moe", hunyuan.HunYuanMoeConfig),
    "HyperCLOVAXForCausalLM": ("hyperclovax", granite.HyperCLOVAXConfig),
    "GraniteMoeSharedForCausalLM": ("granitemoeshared", granite.GraniteMoeSharedConfig),
    "FlexOlmoForCausalLM": ("flex_olmo", olmo.FlexOlmoConfig),
    "Starcoder2ForCausalLM": ("starcoder2", starcoder.Starcoder2Config),
    "GPTBigCodeForCausalLM": ("gpt_bigcode", starcoder.GPTBigCodeConfig),
    "GPTJForCausalLM": ("gptj", gpt.GPTJConfig),
    "CodeGenForCausalLM": ("codegen", gpt.CodeGenConfig),
    "GPTNeoForCausalLM": ("gpt_neo", gpt.GPTNeoConfig),
    "FalconForCausalLM": ("falcon", slopes.FalconConfig),
    "BloomForCausalLM": ("bloom", slopes.BloomConfig),
    "MptForCausalLM": ("mpt", slopes.MptConfig),
    "BaichuanForCausalLM": ("baichuan", slopes.BaichuanConfig),
    "DeepseekV2ForCausalLM": ("deepseek_v2", deepseek.DeepseekV2Config),
    "DeepseekV3ForCausalLM": ("deepseek_v3", deepseek.DeepseekV3Config),
    "DeepseekV32ForCausalLM": ("deepseek_v32", deepseek.DeepseekV32Config),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite", deepseek.Glm4MoeLiteConfig),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", deepseek.GlmMoeDsaConfig),
    "MiniCPM3ForCausalLM": ("minicpm3", deepseek.MiniCPM3Config),
    "YoutuForCausalLM": ("youtu", deepseek.YoutuConfig),
}
AS_LLAMA = ("exaone", "internlm3")  # types for which transformers writes Llama's class
_ENCODERS: dict[str, tuple[str, type[FamilyConfig]]] = {
    "Bert": ("bert", encoder.BertConfig),
    "Roberta": ("roberta", encoder.RobertaConfig),
    "XLMRoberta": ("xlm-roberta", encoder.RobertaConfig),
    "Camembert": ("camembert", encoder.RobertaConfig),
    "MPNet": ("mpnet", encoder.MPNetConfig),
    "DistilBert": ("distilbert", encoder.DistilBertConfig),
    "ModernBert": ("modernbert", modernbert.ModernBertConfig),
    "Albert": ("albert", encoder.AlbertConfig),
    "Electra": ("electra", encoder.ElectraConfig),
    "Ernie": ("ernie", encoder.ErnieConfig),
    "NomicBert": ("nomic_bert", rotary_encoders.NomicBertConfig),
    "JinaEmbeddingsV3": ("jina_embeddings_v3", rotary_encoders.JinaEmbeddingsV3Config),
    "Gte": ("gte", rotary_encoders.GteConfig),
    "DebertaV2": ("deberta-v2", encoder.DebertaV2Config),
}
_ENCODER_DECODERS: dict[str, tuple[str, type[FamilyConfig]]] = {
    "T5ForConditionalGeneration": ("t5", t5.T5Config),
    "MT5ForConditionalGeneration": ("mt5", t5.T5Config),
    "BartForConditionalGeneration": ("bart", bart.BartConfig),
    "MBartForConditionalGeneration": ("mbart", bart.MBartConfig),
    "MarianMTModel": ("marian", bart.MarianConfig),
    "PegasusForConditionalGeneration": ("pegasus", bart.PegasusConfig),
    "WhisperForConditionalGeneration": ("whisper", bart.WhisperConfig),
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
} | dict.fromkeys(("Gemma3TextModel", "Gemma3TextForSequenceClassification"), gemma.Gemma3TextConfig)
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
    spec = replace(read_record(values, family).spec(architecture, family.with_ropes(values)), vision=vision)
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
