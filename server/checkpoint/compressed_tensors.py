"""`quantization_config` of a compressed-tensors checkpoint: which modules hold 8-bit codes, and of which format.

Served are int8 and float8 e4m3 weights with one symmetric scale per output row or per tensor, and activations that are
not quantized or quantized token by token; whatever else the form can say is refused by name. Reads no weights.
(https://github.com/vllm-project/compressed-tensors)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from server.checkpoint.json_object import JsonObject
from server.config import Quantization
from server.models.spec import ModelSpec
from server.models.tensors import linear_modules
from server.typed_json import shown

METHOD = "compressed-tensors"
STRATEGIES = ("channel", "tensor")
MAX_PATTERN = 200
MAX_REPEATS, MAX_ALTERNATIVES = 3, 8  # in one pattern: they bound what a hostile one can cost
# The patterns that are run: literals, ".", ".*", ".+", "\d+", "\.", anchors, and groups that nothing repeats.
_PATTERN = re.compile(r"(?:[\w-]|\.[*+]?|\\d\+?|\\\.|\^|\$|\((?:\?:)?|\)(?![*+?{])|\|)*")


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """What the checkpoint has quantized: `modules` have codes, `left_out` are plain; together all linear modules."""

    quantization: Quantization
    modules: frozenset[str]
    left_out: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """The dtype of the codes in safetensors."""
        return "F8_E4M3" if self.quantization == "fp8" else "I8"


def refuse_unknown_method(config: JsonObject) -> None:
    """Refuse weights that are quantized in another form than compressed-tensors."""
    section = config.child("quantization_config")
    if section is not None and section.get("quant_method") != METHOD:
        reason = f"has quant_method {shown(section.get('quant_method'))}; served are {METHOD} and plain weights"
        config.refuse("quantization_config", reason)


def read_stored_quantization(config: JsonObject, spec: ModelSpec) -> StoredQuantization | None:
    """What config.json says of its weights; None when they are not quantized. Raises CheckpointError."""
    section = config.child("quantization_config")
    if section is None:
        return None
    refuse_unknown_method(config)
    _refuse_extras(section)
    group = _only_group(section)
    weights = group.child("weights")
    if weights is None:
        group.refuse("weights", "is missing")
    kind = _one_of(weights, "type", ("int", "float"))
    _check_weights(weights)
    _check_format(section, kind)
    _check_format(group, kind)
    has_activations = _check_activations(group, kind)
    quantization: Quantization = "fp8" if kind == "float" else "int8" if has_activations else "int8-weight-only"
    modules = linear_modules(spec)
    ignored = [module for module in modules if any(_matches(section, entry, module) for entry in _ignore(section))]
    tied = ["lm_head"] if spec.is_tied else []  # the embedding's own tensor, which is never quantized
    return StoredQuantization(quantization, frozenset(modules) - set(ignored), tuple(ignored + tied))


def _refuse_extras(section: JsonObject) -> None:
    """Whole features that this server does not have."""
    status = section.get("quantization_status")
    if status not in (None, "compressed"):
        section.refuse("quantization_status", f"{shown(status)} is not supported, only 'compressed'")
    sparsity = section.child("sparsity_config")
    if sparsity is not None and sparsity.get("format") not in (None, "dense"):
        sparsity.refuse("format", f"{shown(sparsity.get('format'))} is not supported, only 'dense'")
    for key in ("kv_cache_scheme", "transform_config"):
        if section.get(key):
            section.refuse(key, "is set, and not supported")


def _only_group(section: JsonObject) -> JsonObject:
    groups = section.child("config_groups")
    if groups is None or len(groups.values) != 1:
        names = [] if groups is None else list(groups.values)
        section.refuse("config_groups", f"{shown(names)} is not supported: exactly one group is")
    group = groups.child(next(iter(groups.values)))
    if group is None:
        section.refuse("config_groups", "has an empty group")
    if group.get("targets") != ["Linear"]:
        group.refuse("targets", f"{shown(group.get('targets'))} is not supported, only ['Linear']")
    return group


def _check_format(section: JsonObject, kind: str) -> None:
    allowed = (f"{kind}-quantized", "naive-quantized")
    if section.get("format") not in (None, *allowed):
        section.refuse("format", f"{shown(section.get('format'))} is not supported; with {kind} only {allowed[0]!r}")


def _check_weights(weights: JsonObject) -> None:
    _require(weights, "num_bits", 8)
    _require(weights, "symmetric", True)
    _require(weights, "dynamic", False)
    _one_of(weights, "strategy", STRATEGIES)
    for key in ("group_size", "block_structure", "actorder"):
        if weights.get(key) not in (None, False, -1):
            weights.refuse(key, f"{shown(weights.get(key))} is not supported: scales are per channel or per tensor")


def _check_activations(group: JsonObject, kind: str) -> bool:
    """Whether activations are quantized; if so it must be token by token."""
    if group.child("output_activations") is not None:
        group.refuse("output_activations", "is set, and not supported")
    inputs = group.child("input_activations")
    if inputs is None:
        return False
    _require(inputs, "num_bits", 8)
    _require(inputs, "type", kind)
    _require(inputs, "symmetric", True)
    _require(inputs, "dynamic", True)
    _require(inputs, "strategy", "token")
    return True


def _require(section: JsonObject, key: str, wanted: Any) -> None:
    """The defaults are the form's own: symmetric and not dynamic."""
    value = section.get(key)
    if value is None:
        value = {"symmetric": True, "dynamic": False}.get(key)
    if type(value) is not type(wanted) or value != wanted:
        section.refuse(key, f"{shown(value)} is not supported, only {wanted!r}")


def _one_of(section: JsonObject, key: str, allowed: tuple[str, ...]) -> str:
    value = section.get(key)
    if value not in allowed:
        section.refuse(key, f"{shown(value)} is not supported, only {' and '.join(map(repr, allowed))}")
    return str(value)


def _ignore(section: JsonObject) -> list[str]:
    entries = section.get("ignore") or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        section.refuse("ignore", f"must be a list of names, not {shown(entries)}")
    return entries


def _matches(section: JsonObject, entry: str, module: str) -> bool:
    """Whether an entry of `ignore` names `module`: exactly, or as a pattern from its beginning on after `re:`."""
    if not entry.startswith("re:"):
        return entry == module
    pattern = entry.removeprefix("re:")
    repeats = pattern.count("*") + pattern.count("+")
    is_bounded = len(pattern) <= MAX_PATTERN and repeats <= MAX_REPEATS and pattern.count("|") <= MAX_ALTERNATIVES
    if not is_bounded or not _PATTERN.fullmatch(pattern):
        section.refuse("ignore", f"has the pattern {shown(entry)}, which is not of the simple kind that is run")
    try:
        return re.match(pattern, module) is not None
    except re.error as error:
        section.refuse("ignore", f"has {shown(entry)}, which is not a pattern: {error}")
