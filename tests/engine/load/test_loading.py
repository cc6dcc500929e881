"""Loading: the account equals the prediction, what cannot be served is refused before it costs anything."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.config import DataParallel, EngineConfig, RuntimeCores
from neuronserve.server.cost.calibration import default_calibration
from neuronserve.server.cost.stacks import STACKS, Stack
from neuronserve.server.device.buckets import CompiledShapes
from neuronserve.server.engine.load import loading
from neuronserve.server.engine.load.inventory import weights_identity
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import CheckpointError, DeviceError, DeviceMemoryError, HostMemoryError, SettingsError
from neuronserve.server.host.memory import GIB, SPARE_BYTES
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits
from neuronserve.server.placement.host_footprint import HostFootprint
from neuronserve.server.placement.shard import ShardSpec
from tests.depth import representative
from tests.engine.config import engine_config
from tools.random_checkpoint.shapes import TINY
from tools.random_checkpoint.writer import Options, write_checkpoint


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for shape in TINY:
        write_checkpoint(shape, root / shape, Options())
    return root


@pytest.fixture
def config_of(checkpoints: Path, kernel_cache: str) -> Any:
    def config(shape: str, **changes: Any) -> EngineConfig:
        base = engine_config(
            checkpoints / shape,
            kernel_cache,
            device="inf2.48xlarge",
            max_model_len=256,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            block_size=32,
            num_blocks_override=40,
        )
        return dataclasses.replace(base, **changes)

    return config


def silent(_: str) -> None:
    """No progress lines."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tp", representative([1, 2, 8], 1, 8))
@pytest.mark.parametrize("shape", representative(TINY, "tiny-qwen2", "tiny-odd"))
def test_the_ledger_is_the_account_of_the_part_and_the_host_has_one_of_its_own(
    config_of: Any, shape: str, tp: int, dtype: str
) -> None:
    config = config_of(shape, tensor_parallel_size=tp, dtype=dtype)
    engine = load_engine(config, silent)
    shape_of = ServingShape(config.dtype, 256, 32, StepLimits(64, 4, 2))
    predicted = Footprint.of(engine.spec, tp, shape_of).with_kv(40)
    assert len(engine.info.memory) == tp
    assert all(core.used == predicted for core in engine.info.memory)
    assert {core.budget for core in engine.info.memory} == {engine.ledger.budget_bytes}
    host_account = HostFootprint.of(engine.spec, ShardSpec.of(engine.spec, tp), shape_of)
    held = engine.info.host_memory
    assert held["kv"] == 40 * host_account.kv_block
    assert 0 < held.pop("weights") <= host_account.fixed["weights"]
    assert held | {"weights": host_account.fixed["weights"]} == host_account.fixed | {"kv": held["kv"]}
    engine.runner.close()


def test_progress_says_what_is_compiled_loaded_and_reserved(config_of: Any) -> None:
    lines: list[str] = []
    engine = load_engine(config_of("tiny-llama", num_blocks_override=None), lines.append)
    text = "\n".join(lines)
    assert "kernels ready in " in text
    assert f"loading layer {engine.spec.num_layers}/{engine.spec.num_layers}" in text
    assert f"KV cache: {engine.cache.num_blocks} blocks, limited by max_num_seqs (the device would hold" in text
    assert engine.cache.num_blocks == 2 * 4 * 9
    most = sum(shard.num_bytes for shard in engine.placement.kv.shards)
    assert f"; at most {most / GIB:.2f} GiB of host memory" in text
    assert engine.cache.grows
    engine.runner.close()


def test_a_model_that_does_not_fit_is_refused_with_the_smallest_part_that_would_do(
    config_of: Any, checkpoints: Path, tmp_path: Path
) -> None:
    config = json.loads((checkpoints / "tiny-llama" / "config.json").read_text())
    assert config["num_hidden_layers"] < 9
    with pytest.raises(DeviceMemoryError) as refusal:
        load_engine(config_of("tiny-llama", device="inf1.xlarge", device_memory_utilization=0.34), silent)
    assert "NRT_RESOURCE (4)" in str(refusal.value)
    assert "weights" in str(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"device": "inf2.xlarg"}, DeviceError, "Did you mean inf2.xlarge"),
        ({"device": "inf2.xlarge", "tensor_parallel_size": 4}, DeviceError, "4"),
        ({"tensor_parallel_size": 3}, DeviceError, "3"),
        (
            {"device": "inf2.24xlarge", "tensor_parallel_size": 8, "data_parallel": DataParallel(2, 3)},
            DeviceError,
            "tensor_parallel_size 8 x data_parallel_size 3 needs 24 NeuronCores: inf2.24xlarge has 12",
        ),
        ({"max_model_len": 10_000_000}, SettingsError, "max_model_len is 10000000"),
        ({"num_blocks_override": 3}, SettingsError, "num_gpu_blocks_override is 3: max_model_len 256 needs at least 9"),
        ({"model_path": "/nowhere"}, CheckpointError, "config.json"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    config_of: Any, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_engine(config_of("tiny-llama", **changes), silent)


def test_a_host_that_is_too_small_is_blamed_itself(config_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "available_bytes", lambda: 1 << 20)
    with pytest.raises(HostMemoryError, match="the host, not the emulated accelerator, is too small"):
        load_engine(config_of("tiny-llama"), silent)


def test_engines_that_share_an_instance_have_cores_and_host_memory_of_their_own(config_of: Any) -> None:
    changes = {"tensor_parallel_size": 2, "num_blocks_override": None, "max_num_seqs": 64, "max_model_len": 512}
    alone = load_engine(config_of("tiny-llama", **changes), silent)
    held = alone.info.host_memory
    kv_block = held["kv"] // alone.cache.num_blocks
    share = sum(held.values()) - held["kv"] + SPARE_BYTES + 200 * kv_block
    engine = load_engine(config_of("tiny-llama", **changes, data_parallel=DataParallel(1, 3, share)), silent)
    assert engine.info.core_ids == (2, 3)
    assert [engine.ledger.core_name(core) for core in (0, 1)] == ["ND 1:NC 0", "ND 1:NC 1"]
    assert 190 <= engine.cache.num_blocks <= 200 < alone.cache.num_blocks
    for each in (alone, engine):
        each.runner.close()


def test_a_share_of_the_host_that_is_too_small_names_the_engines(config_of: Any) -> None:
    with pytest.raises(HostMemoryError, match=r"on each of 4 engines, needs 0\.\d\d GiB .*0\.00 GiB is available"):
        load_engine(config_of("tiny-llama", data_parallel=DataParallel(0, 4, 1 << 20)), silent)


def test_the_engine_says_what_it_is_compiled_and_priced_for(config_of: Any) -> None:
    buckets = {"context_encoding_buckets": (32, 48), "token_generation_buckets": (64,)}
    config = config_of("tiny-qwen2", batching="neuron", pace="device", **buckets)
    loaded = load_engine(config, silent)
    loaded.runner.close()
    facts = loaded.info.facts
    assert facts.compiled == CompiledShapes("neuron", 4, (32, 48), (64, 256))
    assert (loaded.scheduler.batching, loaded.scheduler.max_prompt_chunk) == ("neuron", 48)
    assert (facts.architecture, facts.quantization, facts.pace) == ("Qwen2ForCausalLM", None, "device")
    assert facts.weights == weights_identity(Path(config.model_path))
    assert facts.weights.of == "headers and sizes"
    assert loaded.pricer.decode_bucket(64) == 64
    assert loaded.pricer.decode_bucket(65) == 256


def test_eight_bit_weights_are_priced_as_such(config_of: Any) -> None:
    plain, int8 = (load_engine(config_of("tiny-qwen2", quantization=kind), silent) for kind in (None, "int8"))
    for loaded in (plain, int8):
        loaded.runner.close()
    assert plain.pricer.decode_ns(10, 1) != int8.pricer.decode_ns(10, 1)


def test_a_part_without_measurements_is_told_as_extrapolated(config_of: Any) -> None:
    loaded = load_engine(config_of("tiny-qwen2", device="inf1.xlarge"), silent)
    loaded.runner.close()
    assert "no decode of an LLM on Inferentia1 is among the measurements" in loaded.info.facts.extrapolated


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_the_engine_is_priced_as_its_stack_pads_and_hosts(config_of: Any, stack: Stack) -> None:
    loaded = load_engine(config_of("tiny-qwen2", stack=stack.name, batching=stack.batching), silent)
    loaded.runner.close()
    facts, pricer, host = loaded.info.facts, loaded.pricer, default_calibration().host(stack.host)
    longest = facts.compiled.token_generation[-1]
    assert (facts.stack, pricer.stack, pricer.request_s) == (stack.name, stack.name, host.request_s)
    assert (loaded.scheduler.batching, facts.compiled.batching) == (stack.batching, stack.batching)
    reads_all, fills_all = (fill == "model length" for fill in (stack.steps_read, stack.prompts_fill))
    assert (len(facts.compiled.token_generation) == 1) == reads_all
    assert (len(facts.compiled.context_encoding) == 1) == fills_all
    assert (pricer.prefill_ns(0, 1) == pricer.prefill_ns(0, longest)) == fills_all
    grows = host.slot_s > 0 or (host.logit_s > 0 and not stack.samples_on_device) or stack.pads_slots
    assert (pricer.decode_ns(1, 4) > pricer.decode_ns(1, 1)) == grows


def test_the_group_takes_the_visible_cores_and_the_account_names_them(config_of: Any) -> None:
    loaded = load_engine(config_of("tiny-llama", tensor_parallel_size=2, runtime_cores=RuntimeCores("9,4-6")), silent)
    assert loaded.info.core_ids == (9, 4)
    assert [line.split("  ")[0] for line in loaded.ledger.account().splitlines()[1:]] == ["ND 4:NC 1", "ND 2:NC 0"]
    assert "inf2.48xlarge, NeuronCore 9, 4:" in loaded.info.notes[1]
    loaded.runner.close()


def test_engines_take_the_visible_cores_one_after_the_other(config_of: Any) -> None:
    changes = {"tensor_parallel_size": 2, "runtime_cores": RuntimeCores("8-11")}
    engine = load_engine(config_of("tiny-llama", **changes, data_parallel=DataParallel(1, 2)), silent)
    assert engine.info.core_ids == (10, 11)
    engine.runner.close()
    with pytest.raises(DeviceError, match=r"^NRT_LOAD_NOT_ENOUGH_NC \(9\): .*data_parallel_size is 3.* 6 NeuronCores"):
        load_engine(config_of("tiny-llama", **changes, data_parallel=DataParallel(0, 3)), silent)
