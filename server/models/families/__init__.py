"""The families that are served, by the name that a config.json gives their architecture."""

from __future__ import annotations

import msgspec

from neuronserve.server.models.config_values import ConfigError, Values, read_record
from neuronserve.server.models.families.classic import GPT2Config, GPTNeoXConfig, OPTConfig, PhiConfig
from neuronserve.server.models.families.cohere import Cohere2Config, CohereConfig
from neuronserve.server.models.families.decoder import DecoderConfig
from neuronserve.server.models.families.encoder import (
    BertConfig,
    DistilBertConfig,
    EncoderConfig,
    MPNetConfig,
    RobertaConfig,
)
from neuronserve.server.models.families.gemma import Gemma2Config, GemmaConfig
from neuronserve.server.models.families.gemma3 import Gemma3Config
from neuronserve.server.models.families.gpt_oss import GptOssConfig
from neuronserve.server.models.families.granite import GraniteConfig
from neuronserve.server.models.families.granite_moe import GraniteMoeConfig, GraniteMoeHybridConfig
from neuronserve.server.models.families.llama4 import Llama4TextConfig
from neuronserve.server.models.families.mistral import Ministral3Config, MinistralConfig, MistralConfig
from neuronserve.server.models.families.mixtral import MixtralConfig
from neuronserve.server.models.families.modernbert import ModernBertConfig
from neuronserve.server.models.families.olmo import Olmo2Config, Olmo3Config
from neuronserve.server.models.families.olmoe import OlmoeConfig
from neuronserve.server.models.families.phi3 import Phi3Config
from neuronserve.server.models.families.qwen import Qwen2Config, Qwen3Config
from neuronserve.server.models.families.qwen_moe import Qwen2MoeConfig, Qwen3MoeConfig
from neuronserve.server.models.families.smollm3 import SmolLM3Config
from neuronserve.server.models.families.text_part import TEXT_PARTS, text_part
from neuronserve.server.models.spec import ModelSpec, without_output_layer
from neuronserve.server.typed_json import shown

GENERATORS: dict[str, type[DecoderConfig]] = {
    "LlamaForCausalLM": DecoderConfig,
    "MistralForCausalLM": MistralConfig,
    "MinistralForCausalLM": MinistralConfig,
    "Ministral3ForCausalLM": Ministral3Config,
    "MixtralForCausalLM": MixtralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen2MoeForCausalLM": Qwen2MoeConfig,
    "Qwen3ForCausalLM": Qwen3Config,
    "Qwen3MoeForCausalLM": Qwen3MoeConfig,
    "GemmaForCausalLM": GemmaConfig,
    "Gemma2ForCausalLM": Gemma2Config,
    "Gemma3ForCausalLM": Gemma3Config,
    "Phi3ForCausalLM": Phi3Config,
    "GraniteForCausalLM": GraniteConfig,
    "GraniteMoeForCausalLM": GraniteMoeConfig,
    "GraniteMoeHybridForCausalLM": GraniteMoeHybridConfig,
    "Olmo2ForCausalLM": Olmo2Config,
    "Olmo3ForCausalLM": Olmo3Config,
    "OlmoeForCausalLM": OlmoeConfig,
    "GptOssForCausalLM": GptOssConfig,
    "SmolLM3ForCausalLM": SmolLM3Config,
    "Llama4ForCausalLM": Llama4TextConfig,
    "GPT2LMHeadModel": GPT2Config,
    "OPTForCausalLM": OPTConfig,
    "GPTNeoXForCausalLM": GPTNeoXConfig,
    "PhiForCausalLM": PhiConfig,
    "CohereForCausalLM": CohereConfig,
    "Cohere2ForCausalLM": Cohere2Config,
}
ENCODERS: dict[str, type[EncoderConfig]] = {
    "Bert": BertConfig,
    "Roberta": RobertaConfig,
    "XLMRoberta": RobertaConfig,
    "Camembert": RobertaConfig,
    "MPNet": MPNetConfig,
    "DistilBert": DistilBertConfig,
    "ModernBert": ModernBertConfig,
}
# Every decoder can embed and classify: its layers without the output layer, under the names of transformers' classes.
HEADLESS: dict[str, type[DecoderConfig]] = {
    name.removesuffix("ForCausalLM").removesuffix("LMHeadModel") + ending: family
    for name, family in GENERATORS.items()
    for ending in ("Model", "ForSequenceClassification")
}
FAMILIES: dict[str, type[DecoderConfig | EncoderConfig]] = {
    **GENERATORS,
    **HEADLESS,
    **{
        f"{name}{ending}": family
        for name, family in ENCODERS.items()
        for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
    },
}


def model_spec_of(config: Values) -> ModelSpec:
    """The dimensions and options of the model that `config`, the values of a config.json, describes.

    Of a model that sees pictures: of its text's part. Raises ConfigError, naming the key, the value and what is
    allowed, for an unknown architecture, remote code, and values that are out of range, contradictory or not
    implemented.
    """
    config = text_part(config)
    architecture = _architecture(config)
    for key in ("auto_map", "trust_remote_code"):
        if config.get(key):
            raise ConfigError(f"{key} is set: code that comes with a checkpoint is never run")
    family = FAMILIES[architecture]
    values = {**{own: config[key] for key, own in own_keys(architecture).items() if key in config}, **config}
    spec = read_record(values, family).spec(architecture, values)
    return without_output_layer(spec) if architecture in HEADLESS else spec


def own_keys(architecture: str) -> dict[str, str]:
    """Llama's keys for which a family has keys of its own, with these. Llama's stand for them where they are missing.

    So a row of the table of public models may say hidden_size where a file says n_embd.
    """
    fields = msgspec.structs.fields(FAMILIES[architecture])
    return {field.name: field.encode_name for field in fields if field.name != field.encode_name}


def _architecture(config: Values) -> str:
    names = config.get("architectures")
    known = ", ".join((*GENERATORS, *TEXT_PARTS, *(f"{name}Model" for name in ENCODERS)))
    if not isinstance(names, list) or not names:
        raise ConfigError(f"architectures is missing; supported are {known}")
    if not isinstance(names[0], str) or names[0] not in FAMILIES:
        raise ConfigError(f"architecture {shown(names[0])} is not supported; supported are {known}")
    return names[0]
