"""The rotary-embedding part of config.json, in its old and new spellings, resolved to a `RopeSpec`.

Computes no tables. What may be left out, and what stands in for it, is as in transformers'
`modeling_rope_utils` (5.x): `_compute_{linear,yarn,llama3}_*` and `standardize_rope_params`.
"""

from __future__ import annotations

import math
from typing import Any

from server.checkpoint.json_object import JsonObject, shown
from server.config import RopeKind, RopeSpec

DEFAULT_THETA = 10_000.0
THETA_LIMITS = (2.0, 1e15)
FACTOR_LIMITS = (1.0, 1e6)
MAX_POSITIONS = 1 << 27
KNOWN: tuple[RopeKind, ...] = ("default", "linear", "llama3", "yarn")


def read_rope(config: JsonObject, max_position: int) -> RopeSpec:
    """The rotary embedding of `config`.

    transformers 5 writes one `rope_parameters` object; before it there were `rope_theta` and `rope_scaling` (which
    wins when a file has both, as it does there). Raises CheckpointError for kinds other than `KNOWN`, for partial
    rotary embeddings, for bases or factors that differ by layer type, and for values out of range.
    """
    rope = config.child("rope_scaling") or config.child("rope_parameters") or JsonObject(config.file, {})
    for holder in (config, rope):
        if holder.number("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0:
            holder.refuse("partial_rotary_factor", f"{holder.get('partial_rotary_factor')} is not supported, only 1.0")
    for key, value in rope.values.items():
        if isinstance(value, dict):
            rope.refuse(key, "is an object: rotary embeddings that differ by layer type are not supported")
    theta = (rope if "rope_theta" in rope else config).number("rope_theta", DEFAULT_THETA, *THETA_LIMITS)
    named = rope.get("rope_type") or rope.get("type") or "default"
    kind = next((known for known in KNOWN if known == named), None)
    if kind is None:
        rope.refuse("rope_type", f"{shown(named)} is not supported; supported are {', '.join(KNOWN)}")
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind=kind, factor=rope.number("factor", None, *FACTOR_LIMITS))
    # A value beside the rope object, where there is one, wins over the one inside it.
    holder = config if "original_max_position_embeddings" in config else rope
    original = holder.integer("original_max_position_embeddings", max_position, 1, MAX_POSITIONS)
    options = _llama3(rope) if kind == "llama3" else _yarn(rope, max_position / original)
    return RopeSpec(theta=theta, kind=kind, original_max_position=original, **options)


def _llama3(rope: JsonObject) -> dict[str, Any]:
    low = rope.number("low_freq_factor", None, 1e-3, 1e6)
    high = rope.number("high_freq_factor", None, 1e-3, 1e6)
    if high <= low:
        rope.refuse("high_freq_factor", f"{high:g} must be above low_freq_factor, which is {low:g}")
    return {"factor": rope.number("factor", None, *FACTOR_LIMITS), "low_freq_factor": low, "high_freq_factor": high}


def _yarn(rope: JsonObject, ratio: float) -> dict[str, Any]:
    """YaRN (arXiv 2309.00071). `ratio`: context now over context at training, the factor when it is null."""
    if "factor" not in rope.values:
        rope.refuse("factor", "is missing")
    factor = rope.number("factor", ratio, *FACTOR_LIMITS)
    # Zero, like null, stands for the default here, as transformers' `or` makes it.
    fast = rope.number("beta_fast", 0.0, 0.0, 1e6) or 32.0
    slow = rope.number("beta_slow", 0.0, 0.0, 1e6) or 1.0
    if fast < slow:
        rope.refuse("beta_fast", f"{fast:g} must not be below beta_slow, which is {slow:g}")
    return {
        "factor": factor,
        "beta_fast": fast,
        "beta_slow": slow,
        "attention_factor": _yarn_attention_factor(rope, factor),
        "truncate": rope.flag("truncate", default=True),
    }


def _yarn_attention_factor(rope: JsonObject, factor: float) -> float:
    if "attention_factor" in rope:
        return rope.number("attention_factor", None, 0.0, 1e6)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    mscale = rope.number("mscale", 0.0, -1e3, 1e3)
    all_dims = rope.number("mscale_all_dim", 0.0, -1e3, 1e3)
    if not (mscale and all_dims):
        return scale(1.0)
    if scale(all_dims) == 0.0:
        rope.refuse("mscale_all_dim", f"{all_dims:g} makes the attention factor infinite")
    return scale(mscale) / scale(all_dims)
