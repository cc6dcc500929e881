"""Tokens do not depend on the number of host threads, nor on how many of them a step is given."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.config import SchedulerConfig
from neuronserve.server.engine import runner
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.runner import fitting_threads
from neuronserve.server.kernels.program import Program
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.types import Request, SamplingParams
from tests.engine.mailbox import run_all

PROMPTS = {"short": range(5, 12), "long": range(3, 203), "one": range(9, 10)}


def requests() -> list[Request]:
    """Requests of different lengths: the last goes on alone."""
    sampling = SamplingParams(max_tokens=24, temperature=0.9, seed=3, ignore_eos=True)
    return [
        Request(name, tuple(prompt), dataclasses.replace(sampling, max_tokens=24 + 8 * i), arrival_time=0.0)
        for i, (name, prompt) in enumerate(PROMPTS.items())
    ]


def tokens_with(kernel_cache: str, cpu_threads: int | str, alone: int | None = None) -> dict[str, list[int]]:
    """Tokens of an engine of the default model; `alone` threads run its steps of one token."""
    settings = EngineSettings(
        cpu_threads=cpu_threads,  # type: ignore[arg-type]
        max_model_len=256,
        max_num_seqs=4,
        num_gpu_blocks_override=64,
        kernel_cache_dir=kernel_cache,
    )
    engine = load_engine(settings.engine_config(Path(settings.model)), lambda _: None)
    if alone is not None:
        engine.runner.num_threads_alone = alone
    return served(engine, requests(), SchedulerConfig(256, 4, 128, 16))


def served(engine: LoadedEngine, requests: list[Request], limits: SchedulerConfig) -> dict[str, list[int]]:
    """Tokens of all requests; ends the engine."""
    mailbox = run_all(Scheduler(limits, KVCacheManager(engine.cache)), engine.runner, requests)
    engine.runner.close()
    return mailbox.tokens


def is_for_rows(program: Program) -> bool:
    """Whether all of its kernels divide their work by rows: those for the tile unit do not."""
    return all(kernel.module.rpartition(".")[2] != "amx" for kernel in program.kernels)


def test_tokens_are_the_same_on_any_number_of_threads(kernel_cache: str) -> None:
    want = tokens_with(kernel_cache, 1)
    assert {name: len(tokens) for name, tokens in want.items()} == {"short": 24, "long": 32, "one": 40}
    assert tokens_with(kernel_cache, 2) == want
    assert tokens_with(kernel_cache, 3, alone=1) == want
    assert tokens_with(kernel_cache, "auto") == want


@pytest.mark.parametrize(("cpu_threads", "fits"), [("auto", True), (2, False)])
def test_only_auto_measures_how_many_threads_a_token_is_worth(cpu_threads: int | str, fits: bool) -> None:
    settings = EngineSettings(cpu_threads=cpu_threads)  # type: ignore[arg-type]
    assert settings.engine_config(Path(settings.model)).fit_threads is fits


def test_who_is_told_how_many_does_not_measure(kernel_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(max_model_len=256, max_num_seqs=4, num_gpu_blocks_override=64)
    config = settings.engine_config(Path(settings.model))
    config = dataclasses.replace(
        config, cpu_threads=2, fit_threads=True, threads_alone=1, kernel_cache_dir=kernel_cache
    )
    monkeypatch.setattr(runner, "fitting_threads", lambda *_: pytest.fail("it measures"))
    engine = load_engine(config, lambda _: None)
    assert engine.runner.num_threads_alone == engine.info.threads_alone == 1
    engine.runner.close()


@pytest.mark.parametrize(
    ("alone_ms", "shared_ms", "fitting"),
    [
        ([0.5], [0.42], 1),  # the built-in model on a quiet host
        ([2.0], [1.2], 2),
        ([0.5, 0.5, 3.5], [0.3, 3.4, 3.2], 1),  # other processes have the CPUs: the fastest of each would say 2
        ([40.0], [39.0], 2),  # bound by memory
    ],
)
def test_one_thread_is_taken_where_more_gain_little(
    alone_ms: list[float], shared_ms: list[float], fitting: int
) -> None:
    turns = {1: itertools.cycle(alone_ms), 2: itertools.cycle(shared_ms)}
    assert fitting_threads(2, lambda threads: next(turns[threads]) / 1e3) == fitting


def _batch_with(kernel_cache: str, cpu_threads: int, monkeypatch: pytest.MonkeyPatch, **options: Any):  # type: ignore[no-untyped-def]
    """Tokens of many sequences of the default model, into how many shares of rows its steps were divided, and how."""
    num_seqs = 40
    settings = EngineSettings(
        cpu_threads=cpu_threads,  # type: ignore[arg-type]
        max_model_len=128,
        max_num_seqs=num_seqs,
        num_gpu_blocks_override=4 * num_seqs,
        kernel_cache_dir=kernel_cache,
        **options,
    )
    engine = load_engine(settings.engine_config(Path(settings.model)), lambda _: None)
    shares = []
    run = engine.runner.pool.run
    monkeypatch.setattr(
        engine.runner.pool,
        "run",
        lambda *args, **options: (shares.append(options.get("shares", 0)), run(*args, **options)),
    )
    sampling = SamplingParams(max_tokens=24, temperature=0.9, seed=3, ignore_eos=True)
    some = [Request(f"{i}", tuple(range(3 + i, 12 + 2 * i)), sampling, arrival_time=0.0) for i in range(num_seqs)]
    tokens = served(engine, some, SchedulerConfig(128, num_seqs, 128, 1024))
    return tokens, set(shares), engine.runner._programs.plain


@pytest.mark.parametrize("options", [{}, {"quantization": "int8", "kv_cache_dtype": "int8"}], ids=["bf16", "int8"])
def test_tokens_are_the_same_where_threads_take_shares_of_the_rows(
    kernel_cache: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    want, alone, _ = _batch_with(kernel_cache, 1, monkeypatch, **options)
    assert alone == {0}
    for threads in (2, 3):
        tokens, shares, program = _batch_with(kernel_cache, threads, monkeypatch, **options)
        assert tokens == want
        assert program.is_by_rows is is_for_rows(program)
        assert (shares > {0}) is program.is_by_rows  # prompts are divided by instructions, single tokens by rows


def test_every_share_of_rows_has_one_scratch_in_all_instructions(kernel_cache: str) -> None:
    """While one share runs a norm another may be at its attention: no kernel may lay its areas out in its own way."""
    settings = EngineSettings(
        max_model_len=128, max_num_seqs=40, num_gpu_blocks_override=64, kernel_cache_dir=kernel_cache
    )
    engine = load_engine(settings.engine_config(Path(settings.model)), lambda _: None)
    program = engine.runner._programs.plain
    areas = set()
    for fields, operands in zip(program.fields, program.operands, strict=True):
        named = dict(zip(fields, operands[0].tolist(), strict=True))
        if "scratch" in named:
            areas.add((named["scratch"], named["scratch_stride"]))
    engine.runner.close()
    assert len(areas) == 1
    assert program.is_by_rows is is_for_rows(program)
