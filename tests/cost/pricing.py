"""Models and calibrations for tests of the cost model, and a step pricer of a small one."""

from __future__ import annotations

from hypothesis import strategies as st

from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.device.buckets import powers_of_two
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.sizes import DecoderSizes

SMALL = DecoderSizes(
    num_layers=2,
    hidden_size=256,
    intermediate_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=1024,
).spec("LlamaForCausalLM", 4096)

LLAMA2_7B = DecoderSizes(32, 4096, 11008, 32, 32, 128, 32000).spec()
LLAMA3_8B = DecoderSizes(32, 4096, 14336, 32, 8, 128, 128256).spec()
MIXTRAL = DecoderSizes(32, 4096, 14336, 32, 8, 128, 32000, num_experts=8, experts_per_token=2).spec()
shapes = st.builds(
    DecoderSizes,
    num_layers=st.integers(1, 8),
    hidden_size=st.sampled_from([256, 768, 4096]),
    num_heads=st.just(32),
    num_kv_heads=st.sampled_from([1, 4, 8, 32]),
    head_dim=st.sampled_from([64, 128]),
    intermediate_size=st.integers(64, 20_000),
    vocab_size=st.integers(100, 200_000),
    is_gated=st.booleans(),
).map(DecoderSizes.spec)


def small_pricer(slots: int = 4, max_model_len: int = 512) -> StepPricer:
    """Pricer of one inf2.xlarge core: prompts on powers of two, decode over the full length."""
    model = CostModel.of(SMALL, instance("inf2.xlarge"), 1)
    return StepPricer(model, slots, powers_of_two(max_model_len), (max_model_len,))
