"""Layers whose feed-forward networks are experts behind a router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Protocol

from msgspec import Meta

from ..config_values import MAX_LAYERS, refuse
from ..layer import ChoiceSpec, ExpertsSpec, FeedForward, NetworkSpec, Routing
from ..names import ROPE_FREQUENCIES, Names

ExpertCount = Annotated[int, Meta(ge=1, le=4096)]
LayerIndex = Annotated[int, Meta(ge=0, le=MAX_LAYERS)]


def expert_layers(experts: ExpertsSpec, chooses: Sequence[bool], dense: NetworkSpec) -> tuple[FeedForward, ...]:
    """Return `experts` for each layer that chooses, and `dense` for the others.

    Raises ConfigError for more choices than experts, and where no layer chooses.
    """
    if not 1 <= experts.per_token <= experts.count:
        raise refuse("num_experts_per_tok", experts.per_token, f"must be 1 to num_experts, which is {experts.count}")
    if not any(chooses):
        raise refuse("num_experts", experts.count, "no layer has experts")
    return tuple(experts if choosing else dense for choosing in chooses)


class SoftmaxKeys(Protocol):
    """Keys of families whose experts are chosen by the largest logits."""

    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool  # weights are divided by the sum of the chosen ones


def softmax_experts(keys: SoftmaxKeys, expert: NetworkSpec) -> ExpertsSpec:
    """Return experts that the softmax of the router's logits weights."""
    routing: Routing = "softmax_of_chosen" if keys.norm_topk_prob else "softmax"
    return ExpertsSpec(keys.num_experts, keys.num_experts_per_tok, expert, routing=routing)


class BalancedKeys(Protocol):
    """Keys of families whose experts are chosen by sigmoids, with a bias that balances them."""

    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    routed_scaling_factor: float

    @property
    def n_group(self) -> int | None:
        """Groups of experts; None: one."""
        ...

    @property
    def topk_group(self) -> int | None:
        """Groups from which a token's experts come; None: one."""
        ...

    def network(self, size: int) -> NetworkSpec:
        """Return a network of `size`."""
        ...


def balanced_experts(keys: BalancedKeys, count: int, num_shared: int, choice: ChoiceSpec | None = None) -> ExpertsSpec:
    """Return `count` experts, and a network as large as `num_shared` of them that all tokens take.

    Without a `choice` a group counts by its two best experts.
    """
    size, per_token = keys.moe_intermediate_size, keys.num_experts_per_tok
    groups = ChoiceSpec(True, keys.n_group or 1, keys.topk_group or 1, 2)
    return ExpertsSpec(
        count,
        per_token,
        keys.network(size),
        shared=keys.network(size * num_shared) if num_shared else None,
        routing="sigmoid_of_chosen" if keys.norm_topk_prob else "sigmoid",
        choice=choice or checked_groups(groups, count, per_token),
        scaling=keys.routed_scaling_factor,
    )


def checked_groups(choice: ChoiceSpec, experts: int, per_token: int) -> ChoiceSpec:
    """Return `choice`. Raises ConfigError for groups that do not divide the experts, or have too few."""
    count, top, best = choice.groups, choice.top_groups, choice.best_of_group
    if experts % count or experts // count < best:
        raise refuse("n_group", count, f"{experts} experts are no groups of {best} or more")
    if top > count or top * (experts // count) < per_token:
        raise refuse("topk_group", top, f"must be 1 to {count} groups with {per_token} experts")
    return choice


def sparse_layers(layers: int, step: int, mlp_only: Sequence[int]) -> list[bool]:
    """Return whether each of `layers` chooses: each `step`th does, except those in `mlp_only`."""
    return [(i + 1) % step == 0 and i not in mlp_only for i in range(layers)]


def names_of(layers: int, further: int, words: Mapping[str, str], leftovers: tuple[str, ...] = ()) -> Names:
    """Return names of a model whose layers after the last predict further tokens, and are not computed."""
    names = Names.of({"shared_expert": "shared_experts", **words}, "model.", (ROPE_FREQUENCIES, *leftovers))
    return replace(names, skipped=tuple(f"model.layers.{i}." for i in range(layers, layers + max(1, further))))
