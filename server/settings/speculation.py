"""Reading of --speculative-config: JSON with vLLM's keys."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, get_args

from ..config.speculation import MOST_SAMPLED, DraftMethod, SpeculationConfig
from ..errors import SettingsError
from ..typed_json import JsonError, convert, parse, shown

NAME = "speculative_config"
_REJECTION = "rejection_sample_method"
_FIELDS = tuple(field.name for field in dataclasses.fields(SpeculationConfig))
_LIMITS: Mapping[str, tuple[float, float]] = {
    "num_speculative_tokens": (1, MOST_SAMPLED - 1),
    "prompt_lookup_min": (1, 64),
    "prompt_lookup_max": (1, 64),
    "suffix_decoding_max_tree_depth": (4, 256),
    "suffix_decoding_max_cached_requests": (0, 1_000_000),
    "suffix_decoding_max_spec_factor": (0.1, 16.0),
    "suffix_decoding_min_token_prob": (0.0, 1.0),
}


def read_speculation(text: str | None) -> SpeculationConfig | None:
    """Return the configuration in `text`, None for no text. Raises SettingsError, which names the key."""
    if text is None:
        return None
    try:
        values = convert(parse(text), dict[str, Any])
        is_synthetic = _take_rejection(values)
        if values.get("method") in ("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp"):  # vLLM's names
            values["method"] = "mtp"
        _require_known("method", values.get("method"), get_args(DraftMethod))
        for key in values:
            _require_known("key", key, (*_FIELDS, _REJECTION))
        return _checked(convert(values, SpeculationConfig), is_synthetic, values)
    except JsonError as error:
        raise SettingsError(f"{NAME} {error}") from None


def _take_rejection(values: dict[str, Any]) -> bool:
    """Remove the way in which drafts are verified; return whether their acceptance is chosen."""
    method = values.pop(_REJECTION, "standard")
    _require_known(_REJECTION, method, ("standard", "synthetic"))
    return bool(method == "synthetic")


def _checked(config: SpeculationConfig, is_synthetic: bool, given: Collection[str]) -> SpeculationConfig:
    for name, (least, most) in _LIMITS.items():
        if not least <= getattr(config, name) <= most:
            raise SettingsError(f"{NAME}: {name} is {getattr(config, name)}: it must be {least} to {most}")
    _require_model(config, given)
    if config.prompt_lookup_min > config.prompt_lookup_max:
        if "prompt_lookup_max" in given and "prompt_lookup_min" in given:
            values = f"prompt_lookup_min is {config.prompt_lookup_min}, prompt_lookup_max {config.prompt_lookup_max}"
            raise SettingsError(f"{NAME}: {values}: the first must not be larger")
        only = config.prompt_lookup_max if "prompt_lookup_max" in given else config.prompt_lookup_min
        config = dataclasses.replace(config, prompt_lookup_min=only, prompt_lookup_max=only)
    length, most = config.synthetic_acceptance_length, config.num_speculative_tokens + 1
    if is_synthetic != (length is not None):
        raise SettingsError(f"{NAME}: {_REJECTION} synthetic and synthetic_acceptance_length go together")
    if length is not None and not 1 <= length <= most:
        raise SettingsError(f"{NAME}: synthetic_acceptance_length is {length}: it must be 1 to {most}")
    return config


def _require_model(config: SpeculationConfig, given: Collection[str]) -> None:
    is_drafted = config.method == "draft_model"
    for name, is_needed in (("model", is_drafted), ("num_speculative_tokens", config.is_by_model)):
        if is_needed and name not in given:
            raise SettingsError(f"{NAME}: method {config.method} needs {name}")
    for name in ("model", "quantization"):
        if not is_drafted and name in given:
            raise SettingsError(f"{NAME}: {name} is for method draft_model, and method is {config.method}")


def _require_known(what: str, given: Any, offered: Collection[str]) -> None:
    if given not in offered:
        raise SettingsError(f"{NAME}: {what} {shown(given)} is not offered: choose from {', '.join(offered)}")
