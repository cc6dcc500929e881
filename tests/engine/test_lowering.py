"""A model that is planned and not served never becomes a program: the op without a kernel is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.config import EngineConfig
from server.engine.load import loading as load
from server.engine.lowering import build_program
from server.engine.operands import Placement
from server.errors import DeviceError
from server.kernels.program import Program
from tools.random_checkpoint.writer import Options, write_checkpoint


@pytest.fixture(scope="module")
def placement(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Placement:
    directory: Path = tmp_path_factory.mktemp("lowering") / "model"
    write_checkpoint("tiny-llama", directory, Options())
    config = EngineConfig(
        model_path=str(directory),
        device="inf2.xlarge",
        tensor_parallel_size=1,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        max_num_queued_reqs=4,
        block_size=16,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=8,
        cpu_threads=1,
        kernel_cache_dir=str(pytestconfig.cache.mkdir("kernels")),
    )
    placed: list[Placement] = []

    def keep(placement: Placement) -> Program:
        placed.append(placement)
        return build_program(placement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "build_program", keep)
        load.load_engine(config, lambda _: None)
    return placed[0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_positions": 64}, "embeddings: no kernel computes AddRows"),
        ({"has_embedding_norm": True}, "embeddings: no kernel computes StreamNorm"),
        ({"kind": "encoder"}, "layer 0: no kernel computes Attention"),
        ({"norm": "layer"}, "layer 0: no kernel computes LayerNorm"),
        ({"parallel_norms": 1}, "layer 0: no kernel computes Parallel"),
        ({"is_gated": False}, "layer 0: no kernel computes Activate"),
        ({"has_attention_gate": True}, "layer 0: no kernel computes AttentionGate"),
        (
            {"num_experts": 4, "experts_per_token": 2, "expert_layers": (False, True, True)},
            "layer 1: no kernel computes Experts",
        ),
    ],
)
def test_an_op_without_a_kernel_is_refused_by_name(
    placement: Placement, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DeviceError) as error:
        build_program(replace(placement, spec=replace(placement.spec, **changes)))
    assert str(error.value) == complaint
