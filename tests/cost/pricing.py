"""A step pricer of a small model, for tests that need charges and not their size."""

from __future__ import annotations

from server.cost.model import CostModel
from server.cost.pricer import StepPricer
from server.device.buckets import powers_of_two
from server.device.catalog import instance
from server.models.spec import ModelSpec

SMALL = ModelSpec(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden_size=256,
    intermediate_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=1024,
    max_position=4096,
)


def small_pricer(slots: int = 4, max_model_len: int = 512) -> StepPricer:
    """On one core of inf2.xlarge: prompts on powers of two, decode over the full length."""
    model = CostModel.of(SMALL, instance("inf2.xlarge"), 1)
    return StepPricer(model, slots, powers_of_two(max_model_len), (max_model_len,))
