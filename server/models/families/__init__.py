"""The families that are served, by the name that a config.json gives their architecture."""

from __future__ import annotations

from server.models.config_values import ConfigError, Values, read_record
from server.models.families.decoder import DecoderConfig
from server.models.families.gemma3 import Gemma3Config
from server.models.families.mistral import MistralConfig
from server.models.families.qwen import Qwen2Config, Qwen3Config
from server.models.spec import ModelSpec
from server.typed_json import shown

FAMILIES: dict[str, type[DecoderConfig]] = {
    "LlamaForCausalLM": DecoderConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
    "Gemma3ForCausalLM": Gemma3Config,
}


def model_spec_of(config: Values) -> ModelSpec:
    """The dimensions and options of the model that `config`, the values of a config.json, describes.

    Raises ConfigError, naming the key, the value and what is allowed, for an unknown architecture, remote code, and
    values that are out of range, contradictory or not implemented.
    """
    architecture = _architecture(config)
    for key in ("auto_map", "trust_remote_code"):
        if config.get(key):
            raise ConfigError(f"{key} is set: code that comes with a checkpoint is never run")
    return read_record(config, FAMILIES[architecture]).spec(architecture, config)


def _architecture(config: Values) -> str:
    names = config.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(names, list) or not names:
        raise ConfigError(f"architectures is missing; supported are {known}")
    if not isinstance(names[0], str) or names[0] not in FAMILIES:
        raise ConfigError(f"architecture {shown(names[0])} is not supported; supported are {known}")
    return names[0]
