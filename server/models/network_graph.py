"""Ops of feed-forward networks, and of experts behind a router."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .layer import ExpertsSpec, FeedForward, NetworkSpec
from .linear import Axis, Linear, Vector, WeightRows
from .names import Names
from .ops import Activate, Experts, Gated, Network, Op


class NetworkGraph:
    """Maker of the ops of one model's networks; `part` makes all rows of a module, `join` those of several."""

    def __init__(
        self,
        names: Names,
        part: Callable[[str, Axis], WeightRows],
        join: Callable[[str, Mapping[str, Axis]], tuple[WeightRows, ...]],
        hidden: Axis,
    ) -> None:
        self._names, self._part, self._join, self._hidden = names, part, join, hidden

    def branch(self, spec: FeedForward | None, at: str) -> tuple[Op, ...]:
        """Return the ops of a layer's feed-forward network, none where it has none."""
        if spec is None:
            return ()
        return (self._experts(spec, at),) if isinstance(spec, ExpertsSpec) else self._network(spec, at)

    def _experts(self, spec: ExpertsSpec, at: str) -> Experts:
        parts: tuple[WeightRows, ...] = (self._part(f"{at}gate", Axis("experts", spec.count)),)
        if spec.has_shared_gate:
            parts = (*parts, self._part(f"{at}shared_expert_gate", Axis("experts", 1)))
        bias = self._names.module(f"{at}gate.e_score_correction_bias")
        return Experts(
            router=Linear("router", parts, self._hidden, spec.has_router_bias),
            first=self._network(spec.expert, f"{at}experts.0.", is_expert=True),
            count=spec.count,
            per_token=spec.per_token,
            shared=() if spec.shared is None else self._network(spec.shared, f"{at}shared_expert."),
            routing=spec.routing,
            weighs_inputs=spec.weighs_inputs,
            has_shared_gate=spec.has_shared_gate,
            choice=spec.choice,
            choice_bias=Vector(bias, spec.count) if spec.choice.has_bias else None,
            scaling=spec.scaling,
        )

    def _network(self, spec: NetworkSpec, at: str, is_expert: bool = False) -> Network:
        ffn = Axis("ffn", spec.size, is_of_expert=is_expert)
        down = Linear("down", (self._part(f"{at}down_proj", self._hidden),), ffn, spec.has_bias)
        if not spec.is_gated:
            up = Linear("up", (self._part(f"{at}up_proj", ffn),), self._hidden, spec.has_bias)
            return up, Activate(spec.activation), down
        gate_up = self._join(at, {"gate_proj": ffn, "up_proj": ffn})
        return Linear("gate_up", gate_up, self._hidden, spec.has_bias), Gated(spec.activation), down
