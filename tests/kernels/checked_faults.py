"""Errors that checked mode reports for wrong operands. test_checked_mode.py runs this in a process of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.engine.runner import ModelRunner
from neuronserve.server.errors import KernelAccessError
from neuronserve.server.kernels.checks import use_checks
from neuronserve.server.kernels.embedding import embed_rows_f32
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.matmul.lanes import MATMULS
from neuronserve.server.kernels.program import Program
from neuronserve.server.kernels.records import STEP, EmbedOperands, MatmulOperands, Record
from neuronserve.server.kernels.workers import WorkerPool
from neuronserve.server.types import SamplingParams, ScheduledSeq, StepPlan
from tests.kernels.kernel_bench import Array, address, aligned, step_record, to_panels, to_tiles
from tools.golden.golden_file import write_golden_checkpoint

ROWS, K, N = 5, 64, 48
NUM_BLOCKS, BLOCK_SIZE = 12, 16
MATMUL_F32 = MATMULS["f32"]["portable"][0]


def record(kind: type[Record], **fields: int) -> Record:
    """Return a record with 0 in the fields that are not given."""
    return kind(**dict.fromkeys(inspect.get_annotations(kind), 0) | fields)


class Matmul:
    """A product of float32 [5, 64] by [64, 48] on two cores; each array has exactly the size it needs."""

    def __init__(self, pool: WorkerPool) -> None:
        rng = np.random.default_rng(1)
        self._pool, x = pool, rng.standard_normal((ROWS, K)).astype(np.float32)
        matrices = [rng.standard_normal((N, K)).astype(np.float32) for _ in range(2)]
        self.want = [x @ matrix.T for matrix in matrices]
        self.memory = [aligned((4 * ROWS * N,), np.float32) for _ in matrices]  # the output, and what follows it
        self.outputs = [each[: ROWS * N] for each in self.memory]
        panels, tiles = to_panels(x, "f32"), [to_tiles(each, "f32") for each in matrices]
        self._inputs = panels, tiles
        self.operands = [
            record(
                MatmulOperands,
                activations=address(panels),
                weights=address(weights),
                output=address(output),
                n_tiles=N // 16,
                k_tiles=K // 32,
                ldc=N,
                matrices=1,
                rows_field=STEP.num_tokens,
            )
            for weights, output in zip(tiles, self.outputs, strict=True)
        ]

    def program(self, core: int = 0, **wrong: int) -> Program:
        """Return the program with the operands of one core changed."""
        operands = list(self.operands)
        operands[core] = operands[core]._replace(**wrong)
        program = Program("test", self)
        program.add("product", MATMUL_F32, operands)
        return program

    def run(self, core: int = 0, **wrong: int) -> None:
        step = np.array(step_record(num_tokens=ROWS), np.int64)
        self._pool.run(self.program(core, **wrong), step.ctypes.data)

    def is_right(self) -> bool:
        got = [each.reshape(ROWS, N) for each in self.outputs]
        return all(np.allclose(a, b, atol=1e-4) for a, b in zip(got, self.want, strict=True))


@pytest.fixture(scope="module", autouse=True)
def _checked(kernel_cache: str) -> None:
    use_checks()
    cache.use_cache(kernel_cache)


@pytest.fixture
def matmul(pool: WorkerPool) -> Matmul:
    return Matmul(pool)


@pytest.fixture(scope="module", params=[1, 3], ids=lambda n: f"{n}-threads")
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    workers = WorkerPool(request.param)
    yield workers
    workers.close()


def test_checked_kernels_have_a_folder_of_their_own(kernel_cache: str) -> None:
    assert cache.use_cache(kernel_cache).name == f"{cache.source_hash()}-checked"


def test_right_operands_raise_nothing_and_compute_the_same(matmul: Matmul) -> None:
    matmul.run()
    assert matmul.is_right()


@pytest.mark.parametrize(
    ("core", "wrong", "verb", "operand"),
    [
        (1, {"ldc": N + 16}, "writes 64", "output of core 1"),
        (1, {"k_tiles": K // 32 + 1}, "reads (64|4)", "(activations of core 0, 1|weights of core 1)"),
        (0, {"n_tiles": N // 16 + 2}, "(reads|writes) 64", "(weights|output) of core [01]"),  # the loop's, of all cores
    ],
)
def test_an_access_names_kernel_instruction_operand_and_core(
    matmul: Matmul, core: int, wrong: dict[str, int], verb: str, operand: str
) -> None:
    message = (
        rf"^kernel matmul_f32_portable {verb} bytes at 0x[0-9a-f]+ \(the first of \d+\), \d+ bytes beyond the end of "
        rf"operand {operand} \(test array, \d+ bytes\).*; instruction 0 of program test: product$"
    )
    with pytest.raises(KernelAccessError, match=message) as caught:
        matmul.run(core, **wrong)
    assert (caught.value.kernel, caught.value.instruction) == ("matmul_f32_portable", "product")
    assert caught.value.operand in operand


def test_nothing_is_written_out_of_range_and_the_pool_goes_on(matmul: Matmul) -> None:
    with pytest.raises(KernelAccessError):
        matmul.run(core=1, ldc=3 * N)
    assert not any(memory[ROWS * N :].any() for memory in matmul.memory)
    matmul.run()
    assert matmul.is_right()


def test_an_operand_that_is_0(matmul: Matmul) -> None:
    with pytest.raises(KernelAccessError, match=r"near address 0, which is the value .*\bactivations, bias, column_"):
        matmul.run(activations=0)


def test_memory_that_no_one_has_registered(matmul: Matmul) -> None:
    stray = aligned((4 * ROWS * N,), np.float32)
    with pytest.raises(KernelAccessError, match=r"operand output of core 0 \(unregistered memory, 0 by"):
        matmul.run(output=int(stray.ctypes.data))
    assert not stray.any()


@pytest.mark.parametrize(
    ("token_ids", "num_tokens", "place"),
    [
        ([1, 10], 2, r"records \(one for each core, \d+ bytes\)"),  # of a core that there is not
        ([1, 2], 3, r"step\.token_ids \(test array, 8 bytes\)"),
    ],
)
def test_records_and_arrays_of_the_step_have_an_end(
    pool: WorkerPool, token_ids: list[int], num_tokens: int, place: str
) -> None:
    table, hidden, tokens = np.ones((10, 32), np.float32), np.zeros((3, 32), np.float32), np.array(token_ids, np.int32)
    program = Program("test", None)
    embed = record(EmbedOperands, table=address(table), hidden=address(hidden), vocab_per_core=10, width=32)
    program.add("embed", embed_rows_f32, [embed])
    step = np.array(step_record(num_tokens=num_tokens, token_ids=address(tokens)), np.int64)
    with pytest.raises(KernelAccessError, match=f"reads . bytes .* beyond the end of operand {place}"):
        pool.run(program, step.ctypes.data)


def test_a_trace_has_a_time_for_each_instruction(matmul: Matmul) -> None:
    program = matmul.program()
    program.add("again", MATMUL_F32, matmul.operands)
    step = np.array(step_record(num_tokens=ROWS), np.int64)
    times: Array = matmul._pool.trace(program, step.ctypes.data)
    assert times.shape == (3,)
    assert (times > 0).all()
    assert (np.diff(times) >= 0).all()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> ModelRunner:
    model = tmp_path_factory.mktemp("model") / "tiny-llama"
    write_golden_checkpoint("tiny-llama", model)
    config = EngineConfig(
        model_path=str(model),
        device="inf2.48xlarge",
        tensor_parallel_size=2,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        max_num_queued_reqs=4,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=NUM_BLOCKS,
        cpu_threads=2,
        kernel_cache_dir=str(pytestconfig.cache.mkdir("kernels")),
        kernel_checks=True,
    )
    return load_engine(config, lambda *_: None).runner  # type: ignore[return-value]


def decode(table: list[int]) -> StepPlan:
    """One token at the end of a context that fills all blocks of the table but one slot."""
    start = len(table) * BLOCK_SIZE - 1
    greedy = SamplingParams(max_tokens=1, temperature=0.0)
    seq = ScheduledSeq("a", (3,), start, (table,), True, greedy, (3,) * (start + 1), start + 1)
    return StepPlan(step_id=1, prefill=(), decode=(seq,))


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.7, 0.9)])
def test_an_engine_takes_right_steps(runner: ModelRunner, temperature: float, top_p: float) -> None:
    plan = decode([1, 2, 3])
    (seq,) = plan.decode
    sampling = replace(seq.sampling, temperature=temperature, top_p=top_p, top_k=5, seed=1)
    result = runner.execute(plan._replace(decode=(seq._replace(sampling=sampling),)))
    assert result.sampled["a"].token_id >= 0


@pytest.mark.parametrize(
    ("table", "label", "operand"),
    [
        ([NUM_BLOCKS, 2, 3], "layer 0 attention", "beyond the end of operand v_cache"),
        ([1, 2, NUM_BLOCKS + 1], "layer 0 rope", "beyond the end of operand v_cache"),
        ([-1, 2, 3], "layer 0 attention", "before the beginning of operand k_cache"),
    ],
    ids=["read", "written", "negative"],
)
def test_a_block_beyond_the_pool_is_found_in_the_first_layer(
    runner: ModelRunner, table: list[int], label: str, operand: str
) -> None:
    """Behind one layer's blocks lie the next layer's: memory that is the engine's own, but not this instruction's."""
    with pytest.raises(KernelAccessError, match=rf"{operand} of core \d \(kv blocks, [kv] of layer 0, ") as caught:
        runner.execute(decode(table))
    assert caught.value.instruction == label
    assert runner.execute(decode([1, 2, 3])).sampled["a"].token_id >= 0
