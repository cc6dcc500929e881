"""A decoder like Llama by its sizes alone, which published measurements state."""

from __future__ import annotations

from dataclasses import dataclass

from .layer import AttentionSpec, ExpertsSpec, FeedForward, LayerSpec, NetworkSpec
from .spec import EmbeddingSpec, HeadSpec, ModelSpec, StackSpec


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a decoder whose layers are alike."""

    num_layers: int
    hidden_size: int
    intermediate_size: int  # of one expert where there are several
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int = 0  # 0 = one network for all tokens
    experts_per_token: int = 0
    is_gated: bool = True

    def spec(self, architecture: str = "", max_position: int = 0, *, is_tied: bool = False) -> ModelSpec:
        """Return the model of these sizes."""
        attention = AttentionSpec(self.num_heads, self.num_kv_heads, self.head_dim)
        layers = (LayerSpec(attention, self._feed_forward()),) * self.num_layers
        stack = StackSpec("decoder", self.hidden_size, EmbeddingSpec(self.vocab_size, self.hidden_size), layers)
        return ModelSpec(architecture, (stack,), max_position, HeadSpec(is_tied))

    def _feed_forward(self) -> FeedForward:
        network = NetworkSpec(self.intermediate_size, is_gated=self.is_gated)
        return ExpertsSpec(self.num_experts, self.experts_per_token, network) if self.num_experts else network
