"""Ops of a layer's experts, for `decoder.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from .layer import ExpertsSpec, NetworkSpec
from .linear import Axis, Linear, Vector, WeightRows
from .ops import Experts, Network, Norm, NormOutput, Op, Parallel


class Parts(Protocol):
    """Maker of a model's linear layers and norms."""

    hidden: Axis

    def part(self, module: str, outputs: Axis) -> WeightRows:
        """Return all rows of `module`."""

    def vector(self, module: str, axis: Axis, tensor: str = "weight") -> Vector:
        """Return a vector of `module`."""

    def rms(self, name: str, module: str) -> Norm:
        """Return the RMSNorm whose weights are those of `module`."""

    def network(self, spec: NetworkSpec, at: str, is_expert: bool = False) -> Network:
        """Return the network whose modules begin with `at`."""


def expert_ops(build: Parts, spec: ExpertsSpec, at: str) -> tuple[Op, ...]:
    """Return the ops of experts whose modules begin with `at`.

    With norms of their own (Gemma 4), experts and the network that all tokens take are branches side by side, whose
    outputs are normed before they are added up; the norm before them is that of the network alone.
    """
    experts = _experts(build, spec, at)
    if not spec.has_own_norms or spec.shared is None:
        return (experts,)
    layer, router = at.removesuffix("mlp."), f"{at}router"
    one = Axis("rows", 1)
    experts = replace(
        experts,
        shared=(),
        router_norm=replace(
            build.rms("router norm", router), weight=build.vector(router, build.hidden, "scale"), is_length=True
        ),
        scales=build.vector(router, replace(one, units=spec.count), "per_expert_scale"),
    )
    outputs = [
        NormOutput(build.rms(f"{name} output norm", f"{layer}post_feedforward_layernorm_{i}"))
        for i, name in ((1, "network"), (2, "expert"))
    ]
    before = build.rms("expert norm", f"{layer}pre_feedforward_layernorm_2")
    return (Parallel(((*build.network(spec.shared, at), outputs[0]), (before, experts, outputs[1]))),)


def _experts(build: Parts, spec: ExpertsSpec, at: str) -> Experts:
    parts: tuple[WeightRows, ...] = (build.part(f"{at}gate", Axis("experts", spec.count)),)
    if spec.has_shared_gate:
        parts = (*parts, build.part(f"{at}shared_expert_gate", Axis("experts", 1)))
    each = Axis("rows", spec.count)
    return Experts(
        router=Linear("router", parts, build.hidden, spec.has_router_bias),
        first=build.network(spec.expert, f"{at}experts.0.", is_expert=True),
        count=spec.count,
        per_token=spec.per_token,
        shared=() if spec.shared is None else build.network(spec.shared, f"{at}shared_expert."),
        routing=spec.routing,
        weighs_inputs=spec.weighs_inputs,
        has_shared_gate=spec.has_shared_gate,
        choice=spec.choice,
        choice_bias=build.vector(f"{at}gate", each, "e_score_correction_bias") if spec.choice.has_bias else None,
        scaling=spec.scaling,
    )
