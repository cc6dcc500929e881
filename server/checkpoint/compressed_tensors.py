"""`quantization_config` of a compressed-tensors checkpoint: which modules hold 8-bit codes, and in which format.

Served are int8 and float8 e4m3 weights with one symmetric scale per output row or per tensor, and activations that are
not quantized or quantized token by token; any other option is refused by name. packed_form.py reads codes that are
packed into words, of this form and of others, microscaling.py microscaling formats, and scaled_blocks.py FP8 in blocks
and NVFP4. Reads no weights.
(https://github.com/vllm-project/compressed-tensors)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config.formats import Quantization
from ..models.config_values import Values
from ..models.decoder import decoder_graph
from ..models.families.text_part import name_in_text
from ..models.spec import ModelSpec
from ..models.tensors import linear_modules
from ..typed_json import JsonError, complaint, convert, shown_key
from .microscaling import MicroscalingForm, is_microscaling, microscaling_form
from .packed_form import SECTION, PackedForm, is_packed, packed_form, require
from .scaled_blocks import BlockForm, block_form, is_scaled_blocks

READ_BY_TENSORS = ("mxfp4",)  # methods that follow from the tensors: fused_experts.py
METHODS = ("compressed-tensors", "gptq", "awq", "fp8", "modelopt", *READ_BY_TENSORS)
MAX_PATTERN = 200
MAX_REPEATS, MAX_ALTERNATIVES = 3, 8  # in one pattern: they bound the time of a hostile one
# Patterns that are run: literals, ".", ".*", ".+", "\d+", "\.", anchors, and groups that are not repeated.
_PATTERN = re.compile(r"(?:[\w-]|\.[*+]?|\\d\+?|\\\.|\^|\$|\((?:\?:)?|\)(?![*+?{])|\|)*")

Kind = Literal["int", "float"]


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """Quantized modules of a checkpoint: `modules` have codes, `left_out` are plain; together all linear modules."""

    quantization: Quantization
    modules: frozenset[str]
    left_out: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """Dtype of the codes in safetensors."""
        return "F8_E4M3" if self.quantization == "fp8" else "I8"


Stored = StoredQuantization | PackedForm | MicroscalingForm | BlockForm


class _Weights(msgspec.Struct):
    """Format of the codes. null means the form's own defaults: symmetric, not dynamic."""

    type: Kind
    num_bits: Literal[8]
    strategy: Literal["channel", "tensor"]
    symmetric: bool | None = None
    dynamic: bool | None = None
    group_size: Any = None
    block_structure: Any = None
    actorder: Any = None


class _Activations(msgspec.Struct):
    """Quantization of inputs at multiplication."""

    type: Kind
    num_bits: Literal[8]
    strategy: Literal["token"]
    symmetric: bool | None = None
    dynamic: bool | None = None


class _Group(msgspec.Struct):
    """Modules that are quantized alike."""

    targets: list[str]
    weights: _Weights
    input_activations: _Activations | None = None
    output_activations: dict[str, Any] | None = None
    format: str | None = None


class _Sparsity(msgspec.Struct):
    format: Literal["dense"] | None = None


class _Section(msgspec.Struct):
    """Keys of `quantization_config` that are read."""

    config_groups: Annotated[dict[str, _Group], Meta(min_length=1, max_length=1)]
    format: str | None = None
    quantization_status: Literal["compressed"] | None = None
    ignore: list[str] | None = None
    sparsity_config: _Sparsity | None = None
    kv_cache_scheme: Any = None
    transform_config: Any = None


def require_known_method(config: Values) -> None:
    """Raise JsonError for weights that are quantized in a form that is not read."""
    if config.get(SECTION) is None:
        return
    section = convert(config[SECTION], dict[str, Any], f"{SECTION}.")
    if section and section.get("quant_method") not in METHODS:
        reason = f"served are {', '.join(METHODS)} and plain weights"
        raise JsonError(complaint(f"{SECTION}.quant_method", section.get("quant_method"), reason))


def read_stored_quantization(config: Values, spec: ModelSpec) -> Stored | None:
    """Return how the weights are quantized by the values of a config.json; None when they are not. Raises JsonError."""
    require_known_method(config)
    if not config.get(SECTION) or config[SECTION].get("quant_method") in READ_BY_TENSORS:
        return None
    is_turned = spec.names.is_transposed
    require(not is_turned, SECTION, config[SECTION], "not supported where weights are stored [inputs, outputs]")
    if is_packed(config[SECTION]):
        return packed_form(config[SECTION])
    if is_microscaling(config[SECTION]):
        return microscaling_form(config[SECTION])
    if is_scaled_blocks(config[SECTION]):
        return block_form(config[SECTION])
    section = convert(config[SECTION], _Section, f"{SECTION}.")
    [(name, group)] = section.config_groups.items()
    path, kind = f"{SECTION}.config_groups.{shown_key(name)}", group.weights.type
    for key in ("kv_cache_scheme", "transform_config"):
        require(not getattr(section, key), f"{SECTION}.{key}", getattr(section, key), "not supported")
    _check_format(SECTION, section.format, kind)
    _check_format(path, group.format, kind)
    _check_group(path, group)
    has_activations = group.input_activations is not None
    quantization: Quantization = "fp8" if kind == "float" else "int8" if has_activations else "int8-weight-only"
    modules, entries = linear_modules(spec), [name_in_text(entry) for entry in section.ignore or ()]
    ignored = [module for module in modules if any(_matches(entry, module) for entry in entries)]
    # A tied output layer is the embedding's own tensor, which is never quantized.
    tied = decoder_graph(spec).head.modules if spec.is_tied else ()
    return StoredQuantization(quantization, frozenset(modules) - set(ignored), (*ignored, *tied))


def _check_format(path: str, value: str | None, kind: str) -> None:
    allowed = (f"{kind}-quantized", "naive-quantized")
    require(value in (None, *allowed), f"{path}.format", value, f"with {kind} only {allowed[0]!r} is supported")


def _check_group(path: str, group: _Group) -> None:
    """Check that all linear modules are quantized, symmetric, weights not dynamic, activations token by token."""
    require(group.targets == ["Linear"], f"{path}.targets", group.targets, "only ['Linear'] is supported")
    require(not group.output_activations, f"{path}.output_activations", group.output_activations, "not supported")
    weights, inputs, only = group.weights, group.input_activations, "only {} is supported"
    require(weights.symmetric is not False, f"{path}.weights.symmetric", weights.symmetric, only.format(True))
    require(not weights.dynamic, f"{path}.weights.dynamic", weights.dynamic, only.format(False))
    for key in ("group_size", "block_structure", "actorder"):
        value = getattr(weights, key)
        require(value in (None, False, -1), f"{path}.weights.{key}", value, "scales are per channel or per tensor")
    if inputs is not None:
        path = f"{path}.input_activations"
        require(inputs.type == weights.type, f"{path}.type", inputs.type, only.format(repr(weights.type)))
        require(inputs.symmetric is not False, f"{path}.symmetric", inputs.symmetric, only.format(True))
        require(inputs.dynamic is True, f"{path}.dynamic", inputs.dynamic, only.format(True))


def _matches(entry: str, module: str) -> bool:
    """Return whether an entry of `ignore` names `module`: exactly, or by a pattern of its beginning after `re:`."""
    if not entry.startswith("re:"):
        return entry == module
    pattern = entry.removeprefix("re:")
    repeats = pattern.count("*") + pattern.count("+")
    is_bounded = len(pattern) <= MAX_PATTERN and repeats <= MAX_REPEATS and pattern.count("|") <= MAX_ALTERNATIVES
    is_simple = is_bounded and _PATTERN.fullmatch(pattern) is not None
    require(is_simple, f"{SECTION}.ignore", entry, "too complex a pattern: only simple ones are run")
    try:
        return re.match(pattern, module) is not None
    except re.error as error:
        raise JsonError(complaint(f"{SECTION}.ignore", entry, f"not a pattern: {error}")) from None
