"""The weights that one token goes through, summed over layers that differ: the active parameters that are published."""

from __future__ import annotations

import pytest

from neuronserve.server.cost.shape import CoreShape, matrix_params
from neuronserve.server.models.public import candidates
from neuronserve.server.models.tensors import num_params


@pytest.mark.parametrize(
    ("name", "active_b"),
    [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22.0),
        ("Qwen1.5-MoE-A2.7B", 2.7),  # four of 60 experts and a shared one
        ("deepseek-moe-16b-base", 2.8),  # and a dense first layer
        ("llama-4-maverick-17b-128e", 17.0),  # every other layer is dense
        ("gpt-oss-120b", 5.1),  # stated without the embedding
    ],
)
def test_a_token_goes_through_the_active_parameters(name: str, active_b: float) -> None:
    (row,) = candidates(name)
    core = CoreShape.of(row.spec, 1)
    layers = core.attention_weights + core.ffn_weights
    active = layers + sum(group.layers * group.weights * group.per_token for group in core.experts) + core.head_weights
    embedding = 0 if "gpt-oss" in name or row.spec.is_tied else row.spec.vocab_size * row.spec.hidden_size
    assert (active + embedding) / 1e9 == pytest.approx(active_b, rel=0.03)
    everything = layers + sum(group.layers * group.weights * group.count for group in core.experts)
    assert everything + core.head_weights + embedding <= num_params(row.spec)
    assert matrix_params(row.spec) == pytest.approx(num_params(row.spec), rel=0.003)
