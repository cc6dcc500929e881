"""Rotary embeddings of a config.json, in the old and the new spelling, as `RopeSpec`.

Computes no tables. Defaults of missing keys are those of transformers' `modeling_rope_utils` (5.x):
`_compute_{linear,yarn,longrope,llama3}_*` and `standardize_rope_params`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from ..typed_json import shown
from .config_values import ConfigError, Positions, Values, read_record, refuse
from .layer import RopeKind, RopeSpec

DEFAULT_THETA = 10_000.0
LAYER_TYPES = ("full_attention", "sliding_attention")

Theta = Annotated[float, Meta(ge=2.0, le=1e15)]
Factor = Annotated[float, Meta(ge=1.0, le=1e6)]
Frequency = Annotated[float, Meta(ge=1e-3, le=1e6)]
Turns = Annotated[float, Meta(ge=0.0, le=1e6)]
Scale = Annotated[float, Meta(ge=-1e3, le=1e3)]
Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]
Sections = Annotated[tuple[Annotated[int, Meta(ge=0, le=1024)], ...], Meta(max_length=3)]
Stretch = Annotated[float, Meta(ge=1e-3, le=1e6)]


class _Common(msgspec.Struct):
    rope_theta: Theta | None = None
    partial_rotary_factor: Fraction | None = None
    original_max_position_embeddings: Positions | None = None
    mrope_section: Sections = ()
    mrope_interleaved: bool = False


class _Linear(msgspec.Struct):
    factor: Factor


class _Llama3(msgspec.Struct):
    factor: Factor
    low_freq_factor: Frequency
    high_freq_factor: Frequency


class _Yarn(msgspec.Struct):
    factor: Factor | None  # null: context of today over context at training
    beta_fast: Turns = 0.0
    beta_slow: Turns = 0.0
    attention_factor: Turns | None = None
    mscale: Scale = 0.0
    mscale_all_dim: Scale = 0.0
    truncate: bool = True


class _LongRope(msgspec.Struct):
    short_factor: list[Stretch]
    long_factor: list[Stretch]
    factor: Factor | None = None  # null: context of today over context at training
    attention_factor: Turns | None = None


def read_rope(config: Values, max_position: int, theta: float = DEFAULT_THETA) -> RopeSpec:
    """Return the rotary embedding of all layers, with the base `theta` where the file names none.

    transformers 5 writes one `rope_parameters` object; older releases write `rope_theta` and `rope_scaling`, which
    wins when a file has both. Raises ConfigError for kinds other than `RopeKind`, for parameters that differ by layer
    type or rotate a part of each head, and for values out of range.
    """
    path, rope = rope_object(config)
    for key in LAYER_TYPES:
        if key in rope:
            raise refuse(f"{path}{key}", rope[key], "rotary embeddings that differ by layer type are not supported")
    return rope_of(config, rope, path, max_position, theta)


def rope_object(config: Values) -> tuple[str, Values]:
    """Return the path of the object with the rotary parameters, and the object; both empty where there is none."""
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is not None and not isinstance(value, dict):
            raise refuse(key, value, "must be an object")
        if value:
            return f"{key}.", value
    return "", {}


def ropes_by_type(config: Values, max_position: int, local_theta: float, theta: float) -> tuple[RopeSpec, RopeSpec]:
    """Return the rotations of sliding and of other layers, with these bases where the file names none.

    Older files have only the base and scaling of the other layers. Raises ConfigError as `read_rope` does.
    """
    path, rope = rope_object(config)
    by_type = {key: _object(f"{path}{key}", rope[key]) for key in LAYER_TYPES if key in rope}
    if not by_type:
        return RopeSpec(local_theta), rope_of(config, rope, path, max_position, theta)
    whole, local = (by_type.get(key, {}) for key in LAYER_TYPES)
    bare = {key: value for key, value in config.items() if key != "rope_theta"}
    return (
        rope_of(bare, local, f"{path}sliding_attention.", max_position, local_theta),
        rope_of(config, whole, f"{path}full_attention.", max_position, theta),
    )


def _object(key: str, value: object) -> Values:
    """Return the rotary parameters of one type of layers; an empty object for null."""
    if value is not None and not isinstance(value, dict):
        raise refuse(key, value, "must be an object")
    return value or {}


def check_ropes(rotations: Iterable[tuple[RopeSpec | None, int]]) -> None:
    """Raise ConfigError where one of the rotations does not fit the size of its heads."""
    for rope, head_dim in rotations:
        if rope is not None:
            _check_rope(rope, head_dim)


def _check_rope(rope: RopeSpec, head_dim: int) -> None:
    rotary_dim = rope.rotary_dim(head_dim)
    if rope.sections and (len(rope.sections) != 3 or sum(rope.sections) != rotary_dim // 2):
        raise refuse("mrope_section", list(rope.sections), f"must be three numbers with the sum {rotary_dim // 2}")
    if rotary_dim == head_dim and head_dim % 2:
        raise refuse("head_dim", head_dim, "odd, but rotary embeddings rotate pairs of values")
    if rotary_dim < 2 or rotary_dim % 2:
        raise refuse(
            "partial_rotary_factor", rope.partial_factor, f"turns {rotary_dim} values of {head_dim}, not pairs"
        )
    if rope.kind == "longrope":
        for key, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
            if len(factors) != rotary_dim // 2:
                raise refuse(key, list(factors), f"must have a number for each of {rotary_dim // 2} pairs")


def rope_of(
    config: Values, rope: Values, path: str, max_position: int, theta: float, *, may_be_partial: bool = False
) -> RopeSpec:
    """Return the rotary embedding that `rope`, at `path` of the file, describes.

    Unless `may_be_partial`, rotations of a part of each head are refused: the family's code would rotate all of it.
    """
    outer, inner = read_record(config, _Common), read_record(rope, _Common, path)
    spec = _scaled(rope, path, inner.rope_theta or outer.rope_theta or theta, _Context.of(outer, inner, max_position))
    partial = inner.partial_rotary_factor or outer.partial_rotary_factor or 1.0
    if partial != 1.0 and not may_be_partial and spec.kind != "proportional":
        raise refuse("partial_rotary_factor", partial, "only 1.0 is supported for this architecture")
    return replace(
        spec, partial_factor=partial, sections=inner.mrope_section, has_mixed_sections=inner.mrope_interleaved
    )


@dataclass(frozen=True, slots=True)
class _Context:
    """Positions at training, and the ratio of today's positions to them."""

    original: int
    ratio: float

    @classmethod
    def of(cls, outer: _Common, inner: _Common, max_position: int) -> _Context:
        # A value beside the rope object, where there is one, wins over the one inside it.
        original = outer.original_max_position_embeddings or inner.original_max_position_embeddings or max_position
        return cls(original, max_position / original)


def _scaled(rope: Values, path: str, base: float, context: _Context) -> RopeSpec:
    """Return the rotation by its kind, of all elements of a head."""
    kind = _kind(rope, path)
    if kind == "default":
        return RopeSpec(base)
    if kind in ("linear", "proportional"):
        stated = rope if kind == "linear" else {"factor": 1.0, **rope}
        return RopeSpec(base, kind, read_record(stated, _Linear, path).factor)
    if kind == "llama3":
        return _llama3(base, context.original, read_record(rope, _Llama3, path), path)
    if kind == "longrope":
        return _longrope(base, context, read_record(rope, _LongRope, path))
    return _yarn(base, context.original, read_record(rope, _Yarn, path), path, context.ratio)


def _kind(rope: Values, path: str) -> RopeKind:
    named = rope.get("rope_type") or rope.get("type") or "default"
    if named in ("mrope", "dynamic"):  # mrope: the default with sections; dynamic: it is, up to max_position
        named = "default"
    kinds: tuple[RopeKind, ...] = get_args(RopeKind)
    for kind in kinds:
        if kind == named:
            return kind
    raise ConfigError(f"{path}rope_type {shown(named)} is not supported; supported are {', '.join(kinds)}")


def _llama3(theta: float, original: int, rope: _Llama3, path: str) -> RopeSpec:
    low, high = rope.low_freq_factor, rope.high_freq_factor
    if high < low:
        raise refuse(f"{path}high_freq_factor", high, f"must not be below low_freq_factor, which is {low:g}")
    return RopeSpec(theta, "llama3", rope.factor, original, low, high)


def _longrope(theta: float, context: _Context, rope: _LongRope) -> RopeSpec:
    """LongRoPE (arXiv 2402.13753, section 3); its equation 5 is the attention factor where the file has none."""
    factor, attention_factor = rope.factor or context.ratio, rope.attention_factor
    if attention_factor is None:
        is_stretched = factor > 1.0 and context.original > 1
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(context.original)) if is_stretched else 1.0
    return RopeSpec(
        theta,
        "longrope",
        factor,
        context.original,
        attention_factor=attention_factor,
        short_factors=tuple(rope.short_factor),
        long_factors=tuple(rope.long_factor),
    )


def _yarn(theta: float, original: int, rope: _Yarn, path: str, ratio: float) -> RopeSpec:
    """YaRN (arXiv 2309.00071). `ratio`, context of today over context at training, is the factor when it is null."""
    factor = ratio if rope.factor is None else rope.factor
    if factor < 1.0:
        raise refuse(f"{path}factor", factor, "must be at least 1")
    # Zero, like null, means the default, as in transformers.
    fast, slow = rope.beta_fast or 32.0, rope.beta_slow or 1.0
    if fast < slow:
        raise refuse(f"{path}beta_fast", fast, f"must not be below beta_slow, which is {slow:g}")
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_yarn_attention_factor(rope, factor, path),
        truncate=rope.truncate,
    )


def _yarn_attention_factor(rope: _Yarn, factor: float, path: str) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    if not (rope.mscale and rope.mscale_all_dim):
        return scale(1.0)
    if scale(rope.mscale_all_dim) == 0.0:
        raise refuse(f"{path}mscale_all_dim", rope.mscale_all_dim, "makes the attention factor infinite")
    return scale(rope.mscale) / scale(rope.mscale_all_dim)
