"""Ops of feed-forward networks, and of experts behind a router."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import NormalDist

from .layer import ExpertsSpec, FeedForward, NetworkSpec
from .linear import Axis, Linear, Vector, WeightRows
from .ops import Activate, Experts, Gated, Network, Norm, NormOutput, Op, Parallel


class NetworkGraph:
    """Maker of the ops of one model's networks.

    `part` makes all rows of a module, `join` those of several, `norm` an RMSNorm with the weights of a module, and
    `vector` one tensor of a module.
    """

    def __init__(
        self,
        part: Callable[[str, Axis], WeightRows],
        join: Callable[[str, Mapping[str, Axis]], tuple[WeightRows, ...]],
        norm: Callable[[str, str], Norm],
        vector: Callable[[str, Axis, str], Vector],
        hidden: Axis,
    ) -> None:
        self._part, self._join, self._norm, self._vector, self._hidden = part, join, norm, vector, hidden

    def branch(self, spec: FeedForward | None, at: str) -> tuple[Op, ...]:
        """Return the ops of a layer's feed-forward network, none where it has none."""
        if spec is None:
            return ()
        if not isinstance(spec, ExpertsSpec):
            return self._network(spec, at)
        return (
            self._side_by_side(spec, spec.shared, at)
            if spec.has_own_norms and spec.shared
            else (self._experts(spec, at),)
        )

    def _side_by_side(self, spec: ExpertsSpec, network: NetworkSpec, at: str) -> tuple[Op, ...]:
        """Return experts beside a network, whose outputs are normed before they are added up (Gemma 4).

        The norm before them is that of the network alone.
        """
        layer, router = at.removesuffix("mlp."), f"{at}router"
        length = replace(self._norm("router norm", router), is_length=True)
        experts = replace(
            self._experts(spec, at),
            shared=(),
            router_norm=replace(length, weight=self._vector(router, self._hidden, "scale")),
            scales=self._vector(router, Axis("rows", spec.count), "per_expert_scale"),
        )
        outputs = [
            NormOutput(self._norm(f"{name} output norm", f"{layer}post_feedforward_layernorm_{i}"))
            for i, name in ((1, "network"), (2, "expert"))
        ]
        before = self._norm("expert norm", f"{layer}pre_feedforward_layernorm_2")
        return (Parallel(((*self._network(network, at), outputs[0]), (before, experts, outputs[1]))),)

    def _experts(self, spec: ExpertsSpec, at: str) -> Experts:
        parts: tuple[WeightRows, ...] = (self._part(f"{at}gate", Axis("experts", spec.count)),)
        if spec.has_shared_gate:
            parts = (*parts, self._part(f"{at}shared_expert_gate", Axis("experts", 1)))
        bias = self._vector(f"{at}gate.e_score_correction_bias", Axis("rows", spec.count), "")
        if spec.choice.is_bias_folded:
            bias = replace(bias, rows=1)
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
            choice_bias=bias if spec.choice.has_bias else None,
            scaling=spec.scaling,
            margin=spec.margin,
        )

    def _network(self, spec: NetworkSpec, at: str, is_expert: bool = False) -> Network:
        ffn = Axis("ffn", spec.size, is_of_expert=is_expert)
        down = Linear("down", (self._part(f"{at}down_proj", self._hidden),), ffn, spec.has_bias)
        has_bias = spec.has_bias and not spec.lacks_first_bias
        if not spec.is_gated:
            up = Linear("up", (self._part(f"{at}up_proj", ffn),), self._hidden, has_bias)
            learned = ("alpha_p", "alpha_n", "beta", "eps") if spec.activation == "xielu" else ()
            vectors = tuple(self._vector(f"{at}act_fn", Axis("rows", 1), name) for name in learned)
            return up, Activate(spec.activation, vectors), down
        gate_up = self._join(at, {"gate_proj": ffn, "up_proj": ffn})
        # Gates are taken as normal: the quantile of `sparsity` is this many deviations above the mean.
        cutoff = NormalDist().inv_cdf(spec.sparsity) if spec.sparsity else None
        gated = Gated(spec.activation, cutoff, spec.size * bool(spec.sparsity))
        return Linear("gate_up", gate_up, self._hidden, has_bias), gated, down

    def narrow(self, size: int, modules: tuple[str, str], between: tuple[Op, ...], name: str) -> tuple[Op, ...]:
        """Return a network without a gate and biases of these two modules, with ops `between` its matrices."""
        inner, (up, down) = Axis("ffn", size), modules
        return (
            Linear(f"{name} up", (self._part(up, inner),), self._hidden),
            *between,
            Linear(f"{name} down", (self._part(down, self._hidden),), inner),
        )
