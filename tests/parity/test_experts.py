"""Mixtures of experts against transformers, to float32's own accuracy, however experts lie over the cores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.config import CompileConfig
from neuronserve.server.config.formats import Quantization, RequestedFormats
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.errors import DeviceError, SettingsError
from neuronserve.server.models.families import model_spec_of
from neuronserve.server.placement.footprint import ServingShape, StepLimits
from neuronserve.server.placement.host_footprint import HostFootprint
from neuronserve.server.placement.shard import ShardSpec
from tests.depth import representative
from tests.parity.conftest import NUM_BLOCKS
from tools.golden.oracle import Oracle
from tools.random_checkpoint.expert_shapes import TINY_EXPERTS
from tools.random_checkpoint.shapes import SHAPES

TOLERANCE = 1e-5  # largest error over largest logit
LAYOUTS = [(1, False), (2, False), (4, False), (2, True), (4, True)]  # cores, and whether each has whole experts
TOKENS = np.random.default_rng(1).integers(0, 384, 150).tolist()

Load = Callable[..., LoadedEngine]


def worst(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


CASES = [(shape, *layout) for shape in TINY_EXPERTS for layout in LAYOUTS]
OFTEN = [(shape, 2, is_expert_parallel) for shape in TINY_EXPERTS for is_expert_parallel in (False, True)]


@pytest.mark.parametrize(("shape", "tp", "is_expert_parallel"), representative(CASES, *OFTEN))
def test_logits_are_those_of_transformers_however_experts_lie(
    checkpoint_of: Callable[[str], Path],
    oracle_of: Callable[[str], Oracle],
    load: Load,
    shape: str,
    tp: int,
    is_expert_parallel: bool,
) -> None:
    engine = load(checkpoint_of(shape), tp, is_expert_parallel)
    assert worst(engine.runner.logits(TOKENS), oracle_of(shape).logits(TOKENS)) <= TOLERANCE


# Mean error over mean logit; of bits of mantissa there are seven, seven, three and two.
LIMITS: dict[Quantization, float] = {"int8": 0.08, "int8-weight-only": 0.05, "fp8": 0.15, "fp8_e5m2": 0.3}


@pytest.mark.parametrize("quantization", LIMITS)
def test_quantized_experts_are_near(
    checkpoint_of: Callable[[str], Path], load: Load, tmp_path: Path, quantization: Quantization
) -> None:
    """All experts are chosen here: otherwise rounding could change a choice."""
    directory = tmp_path / "model"
    shutil.copytree(checkpoint_of("tiny-mixtral"), directory)
    config = json.loads((directory / "config.json").read_text()) | {"num_experts_per_tok": 8}
    (directory / "config.json").write_text(json.dumps(config))
    want = Oracle(directory).logits(TOKENS)
    for tp, is_expert_parallel in ((1, False), (2, True)):
        got = load(directory, tp, is_expert_parallel, quantization).runner.logits(TOKENS)
        assert np.abs(got - want).mean() <= LIMITS[quantization] * np.abs(want).mean()


@pytest.mark.parametrize("is_expert_parallel", [False, True])
def test_the_host_takes_what_its_account_says(
    checkpoint_of: Callable[[str], Path], load: Load, is_expert_parallel: bool
) -> None:
    engine = load(checkpoint_of("tiny-qwen2-moe"), 2, is_expert_parallel)
    shape = ServingShape("float32", 256, 16, StepLimits(64, 2, 2))
    account = HostFootprint.of(engine.spec, ShardSpec.of(engine.spec, 2, is_expert_parallel), shape)
    expected = {**account.fixed, "kv": NUM_BLOCKS * account.kv_block}
    used = engine.info.host_memory
    assert {use: used[use] for use in ("activations", "partial_sums", "workers", "tables", "kv")} == {
        use: expected[use] for use in ("activations", "partial_sums", "workers", "tables", "kv")
    }
    assert used["weights"] <= expected["weights"] <= 1.2 * used["weights"]


def test_a_compiled_model_keeps_whole_experts(
    checkpoint_of: Callable[[str], Path], load: Load, kernel_cache: str, tmp_path: Path
) -> None:
    source, target = checkpoint_of("tiny-mixtral"), tmp_path / "compiled"
    compile_model(
        CompileConfig(
            str(source), str(target), 2, RequestedFormats("float32"), kernel_cache, enable_expert_parallel=True
        ),
        lambda _: None,
    )
    got = load(target, 2, True).runner.logits(TOKENS)
    assert np.array_equal(got, load(source, 2, True).runner.logits(TOKENS))
    with pytest.raises(SettingsError, match=r"enable_expert_parallel is False: .* was compiled for True"):
        load(target, 2, False)


@pytest.mark.parametrize(
    ("shape", "tp", "complaint"),
    [
        (
            "tiny-mixtral",
            3,
            "MixtralForCausalLM has 8 experts in a layer, which do not divide over tensor_parallel_size 3",
        ),
        ("tiny-llama", 2, "LlamaForCausalLM has no experts to divide over tensor_parallel_size 2"),
    ],
)
def test_whole_experts_that_do_not_divide_are_refused(shape: str, tp: int, complaint: str) -> None:
    spec = model_spec_of(SHAPES[shape].config("float32"))
    with pytest.raises(DeviceError, match=f"enable_expert_parallel: {complaint}"):
        ShardSpec.of(spec, tp, is_expert_parallel=True)
