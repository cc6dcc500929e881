"""Keys of families whose feed-forward networks are experts behind a router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from neuronserve.server.models.config_values import MAX_LAYERS, refuse

Experts = Annotated[int, Meta(ge=1, le=4096)]
LayerIndex = Annotated[int, Meta(ge=0, le=MAX_LAYERS)]


def expert_fields(count: int, per_token: int, chooses: Sequence[bool], expert: int, dense: int) -> dict[str, Any]:
    """Fields of the spec of a model whose layers have `count` experts, of `expert` size each, where they choose.

    Layers that do not choose have one network of size `dense`. Raises ConfigError for more choices than experts, and
    where no layer chooses.
    """
    if per_token > count:
        raise refuse("num_experts_per_tok", per_token, f"must be 1 to num_experts, which is {count}")
    if not any(chooses):
        raise refuse("num_experts", count, "no layer has experts")
    return {
        "intermediate_size": expert,
        "num_experts": count,
        "experts_per_token": per_token,
        "expert_layers": () if all(chooses) else tuple(chooses),
        "dense_intermediate_size": 0 if all(chooses) else dense,
    }


def sparse_layers(layers: int, step: int, mlp_only: Sequence[int]) -> list[bool]:
    """Whether each of `layers` chooses: every `step`th from the first whose number it divides, less `mlp_only`."""
    return [(i + 1) % step == 0 and i not in mlp_only for i in range(layers)]
