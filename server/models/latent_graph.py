"""Ops of latent attention, under the names of DeepSeek's modules."""

from __future__ import annotations

from collections.abc import Callable

from .layer import LatentAttentionSpec
from .linear import Axis, Linear, Vector, WeightRows
from .ops import LatentAttention, Op

Part = Callable[[str, Axis], WeightRows]  # (module, outputs) -> its rows


def latent_ops(spec: LatentAttentionSpec, at: str, hidden: Axis, part: Part) -> tuple[Op, ...]:
    """Return the ops of a layer whose modules begin with `at`; `part` gives modules their names in the checkpoint."""
    query_size = spec.size + spec.rotary
    queries = Axis("query", spec.num_heads, query_size, heads=spec.heads)
    values = Axis("query", spec.num_heads, spec.value_size, heads=spec.heads)
    expanded = Axis("query", spec.num_heads, spec.size + spec.value_size, heads=spec.heads)
    row = part(f"{at}kv_a_proj_with_mqa", Axis("rows", spec.head_dim))
    down = norm = None
    if spec.query_rank:
        narrow = Axis("rows", spec.query_rank)
        down = Linear("q_a", (part(f"{at}q_a_proj", narrow),), hidden, spec.has_qkv_bias)
        norm = Vector(part(f"{at}q_a_layernorm", narrow).weight, spec.query_rank)
        query = Linear("q_b", (part(f"{at}q_b_proj", queries),), narrow)
    else:
        query = Linear("q", (part(f"{at}q_proj", queries),), hidden)
    heads = Linear("kv_b", (part(f"{at}kv_b_proj", expanded),), Axis("rows", spec.rank), is_table=True)
    return (
        LatentAttention(
            spec=spec,
            down=down,
            query_norm=norm,
            query=query,
            latent=Linear("kv_a", (row,), hidden, spec.has_qkv_bias),
            latent_norm=Vector(part(f"{at}kv_a_layernorm", hidden).weight, spec.rank),
            heads=heads,
        ),
        Linear("o", (part(f"{at}o_proj", hidden),), values, spec.has_o_bias),
    )
