"""Sizes of a step's buffers for layers with experts, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..device.hbm import ALIGNMENT
from ..device.layout import FLOAT32_BYTES, GROUP_ROWS, N_TILE, round_up, vector_bytes
from ..models.linear import Axis
from ..models.spec import ModelSpec
from .footprint import ServingShape
from .matrices import Widths
from .shard import ShardSpec

INDEX_BYTES = 8  # int64


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Bytes of each buffer. A row is one token for one of its experts; rows are sorted by expert."""

    router_width: int  # logits of a token
    width: int  # of one expert on a core that has it
    copies: int  # of experts' outputs: one for each core if cores divide every expert, else one in all
    read: int  # float32 rows after the norm, still unsorted
    weighed: int  # float32 rows of choices, if the router's weight scales the experts' inputs
    logits: int
    scores: int  # float32 of all experts, and of their groups, if the choice is not by logits
    choices: int  # int64 of each token's choices
    weights: int  # float32 of each token's choices
    gates: int  # float32 of each token
    counts: int  # int64 of each expert
    groups: int
    routed: int  # panels
    row_scales: int
    activated: int  # float32 rows, of one copy
    activated_panels: int
    outputs: int  # float32 rows, of one copy

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> ExpertSizes | None:
        """Return the sizes; None for a model without experts."""
        spec = model.experts
        if spec is None:
            return None
        w, cell = Widths.of(model, shard), shape.cell_bytes
        tokens, experts = round_up(shape.limits.num_tokens, N_TILE), spec.count
        choices = tokens * spec.per_token
        rows = round_up(choices, GROUP_ROWS) + (GROUP_ROWS - 1) * min(experts, choices)
        rows = round_up(rows, GROUP_ROWS)
        width = w.ffn(Axis("ffn", spec.expert.size, is_of_expert=True))
        router_width = round_up(experts + spec.has_shared_gate, N_TILE)
        return cls(
            router_width=router_width,
            width=width,
            copies=shard.expert_tp,
            read=tokens * w.hidden * FLOAT32_BYTES,
            weighed=choices * w.hidden * FLOAT32_BYTES if spec.weighs_inputs else 0,
            logits=vector_bytes(tokens * router_width),
            scores=0 if spec.choice.is_plain else vector_bytes(tokens * (router_width + spec.choice.groups)),
            choices=choices * INDEX_BYTES,
            weights=vector_bytes(choices),
            gates=vector_bytes(tokens),
            counts=round_up(experts * INDEX_BYTES, ALIGNMENT),
            groups=round_up((1 + 3 * experts) * INDEX_BYTES, ALIGNMENT),
            routed=rows * w.hidden * cell,
            row_scales=vector_bytes(rows),
            activated=rows * width * FLOAT32_BYTES,
            activated_panels=rows * width * cell,
            outputs=rows * w.hidden * FLOAT32_BYTES,
        )

    @property
    def total(self) -> int:
        """Bytes of all buffers over all cores."""
        once = self.read + self.weighed + self.logits + self.scores + 3 * self.choices + self.weights + self.gates
        own = self.activated + self.activated_panels + self.row_scales + self.outputs
        return once + self.counts + self.groups + self.routed + self.row_scales + self.copies * own
