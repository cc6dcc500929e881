"""Mixtral: Mistral with experts in the place of each feed-forward network, under names of their own."""

from __future__ import annotations

from typing import Any

from neuronserve.server.models.config_values import Epsilon, Positions, Values
from neuronserve.server.models.families.experts import Experts, expert_fields
from neuronserve.server.models.families.mistral import MistralConfig
from neuronserve.server.models.names import Names
from neuronserve.server.models.rope import read_rope

THETA = 1_000_000.0
NAMES = Names.of({"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}, "model.")


class MixtralConfig(MistralConfig, kw_only=True):
    """Keys and defaults of MixtralConfig."""

    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2

    def features(self, values: Values) -> dict[str, Any]:
        chooses = [True] * self.num_hidden_layers
        size = self.intermediate_size
        experts = expert_fields(self.num_local_experts, self.num_experts_per_tok, chooses, size, size)
        return {**super().features(values), **experts, "names": NAMES}

    def ropes(self, values: Values) -> dict[str, Any]:
        return {"rope": read_rope(values, self.max_position_embeddings, THETA)}
