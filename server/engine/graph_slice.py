"""The part of a graph that one program computes: a whole model, its states without logits, or a pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import DeviceError
from ..models.graph import Graph, flat_ops
from ..models.linear import Linear
from ..models.ops import (
    Activate,
    Add,
    AddRows,
    Attention,
    AttentionGate,
    CrossAttention,
    DistanceBuckets,
    Experts,
    Gated,
    HeadNorm,
    LatentAttention,
    LayerNorm,
    Norm,
    NormOutput,
    Parallel,
    PlainHeadNorm,
    Replace,
    Rope,
    StreamNorm,
)
from ..models.state_ops import Convolution, GatedNorm, Recurrence
from ..models.stream_ops import StreamFactor, StreamsOp

# "logits" of the sampled rows; "states" of all rows, normed; "stream": the residual stream, for the next stage.
End = Literal["logits", "states", "logits and states", "stream"]

COMPUTED = (
    *(Activate, Add, AddRows, Attention, AttentionGate, Convolution, CrossAttention, DistanceBuckets, Experts, Gated),
    *(GatedNorm, HeadNorm, LatentAttention, LayerNorm, Linear, Norm, Parallel, PlainHeadNorm, Recurrence, Replace),
    *(NormOutput, Rope, StreamFactor, StreamNorm, StreamsOp),
)


@dataclass(frozen=True, slots=True)
class GraphSlice:
    """Neighbouring layers, and what is computed before and after them."""

    layers: range
    embeds: bool  # begins with the embeddings; otherwise another program has left the residual stream
    end: End

    @classmethod
    def whole(cls, graph: Graph, leaves_states: bool = False) -> GraphSlice:
        """All of a model. Its rows end as states when it has no output layer, or when `leaves_states`."""
        return cls(range(len(graph.layers)), True, "logits" if graph.has_head and not leaves_states else "states")

    def require_kernels(self, graph: Graph) -> None:
        """Raise DeviceError, naming the op, for an op that no kernel computes."""
        sections = [(f"layer {i}", graph.layers[i]) for i in self.layers]
        if self.embeds:
            sections.insert(0, ("embeddings", graph.prelude))
        for label, op in ((label, op) for label, ops in sections for op in flat_ops(ops)):
            if not isinstance(op, COMPUTED):
                raise DeviceError(f"{label}: no kernel computes {type(op).__name__}")
            if isinstance(op, Attention) and not op.is_causal and (op.cap or op.sinks or op.is_chunked):
                raise DeviceError(f"{label}: no kernel computes Attention to both sides with a cap, sinks or chunks")
