"""llama.cpp's own `llama-bench` and `llama-batched-bench`, which load the model again for each measurement."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from benchmarks.records import (
    CONTEXT_DECODE_TOKENS,
    DECODE_TOKENS,
    PREFILL_TOKENS,
    BenchmarkError,
    Case,
    Figures,
)
from neuronserve.server.typed_json import JsonError, decode

TIMEOUT_S = 600.0
CONTEXT_TIMEOUT_S = 7200.0  # 32,768 tokens on two processors


class BenchEntry(msgspec.Struct):
    """A measurement of `llama-bench -o json`."""

    n_prompt: int
    n_gen: int
    avg_ts: float  # tokens/s
    build_number: int | None = None
    build_commit: str | None = None
    model_type: str | None = None


class ContextEntry(msgspec.Struct):
    """A measurement of `llama-batched-bench --output-format jsonl`."""

    pp: int
    tg: int
    speed_pp: float  # tokens/s
    speed_tg: float


class _Program:
    """A program that is started for each measurement and keeps no state between them."""

    def __init__(self, program: Path, model: Path, threads: int, name: str = "llama.cpp") -> None:
        self.name = name
        self._program, self._model, self._threads = program, model, threads
        self._about: dict[str, str] = {"threads": str(threads), "model": model.name}

    def start(self) -> None:
        if not self._model.is_file():
            raise BenchmarkError(f"there is no file {self._model}")

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def about(self) -> dict[str, str]:
        return self._about

    def _run(self, *flags: str, timeout_s: float) -> str:
        return run(self._program, "-m", self._model, "-t", self._threads, *flags, timeout_s=timeout_s).stdout


class LlamaBench(_Program):
    """Prompts or generated tokens from an empty context; the program warms up by itself."""

    def measure(self, case: Case, seed: int) -> Figures:
        del seed  # llama-bench draws its own tokens
        prompt, generated = (PREFILL_TOKENS, 0) if case.kind == "prefill" else (0, DECODE_TOKENS)
        flags = ("-p", str(prompt), "-n", str(generated), "-r", "1", "-o", "json")
        entry = parse(self._run(*flags, timeout_s=TIMEOUT_S), prompt, generated)
        self._about["version"] = f"{entry.build_number} ({entry.build_commit})"
        self._about["weights"] = str(entry.model_type)
        name = "prefill_tokens_per_s" if prompt else "decode_tokens_per_s"
        return {name: entry.avg_ts}


class LlamaContext(_Program):
    """A long prompt and tokens after it, with flash attention and a KV cache of a given type."""

    def __init__(self, program: Path, model: Path, threads: int, cache_type: str) -> None:
        super().__init__(program, model, threads)
        self._about["cache"] = cache_type
        self._cache_flags = ("-fa", "on", "-ctk", cache_type, "-ctv", cache_type)

    def measure(self, case: Case, seed: int) -> Figures:
        del seed
        size, generated = case.size, CONTEXT_DECODE_TOKENS
        flags = ["-tb", str(self._threads), "-c", str(size + generated), "-npp", str(size), "-ntg", str(generated)]
        flags += ["-npl", "1", *self._cache_flags]
        entry = parse_context(self._run(*flags, "--output-format", "jsonl", timeout_s=CONTEXT_TIMEOUT_S), size)
        return {"prefill_tokens_per_s": entry.speed_pp, "decode_tokens_per_s": entry.speed_tg}


def run(program: Path, *flags: object, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end. Raises BenchmarkError if it fails."""
    try:
        # Each contender has a session of its own: Linux divides CPUs between sessions first (autogroup).
        done = subprocess.run(
            [str(each) for each in (program, *flags)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{program.name}: {error}") from error
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-3:])
        raise BenchmarkError(f"{program.name} ended with code {done.returncode}:\n{last}")
    return done


def program_in(folder: Path, name: str) -> Path:
    """Return a program of llama.cpp's build folder. Raises BenchmarkError if it is missing."""
    for program in (folder / name, folder / "bin" / name):
        if program.is_file():
            return program
    raise BenchmarkError(f"--llama-cpp: there is no {name} in {folder} or its bin folder")


def parse(output: str, prompt: int, generated: int) -> BenchEntry:
    """Return the entry for these numbers of prompt and generated tokens. Raises BenchmarkError."""
    try:
        entries = decode(output, list[BenchEntry])
    except JsonError as error:
        raise BenchmarkError(f"output of llama-bench: {error}") from error
    for entry in entries:
        if (entry.n_prompt, entry.n_gen) == (prompt, generated):
            return entry
    raise BenchmarkError(f"llama-bench printed nothing for {prompt} prompt and {generated} generated tokens")


def parse_context(output: str, prompt: int) -> ContextEntry:
    """Return the entry for a prompt of that length. Raises BenchmarkError."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    try:
        entries = [decode(line, ContextEntry) for line in lines]
    except JsonError as error:
        raise BenchmarkError(f"output of llama-batched-bench: {error}") from error
    for entry in entries:
        if entry.pp == prompt:
            return entry
    raise BenchmarkError(f"llama-batched-bench printed nothing for {prompt} prompt tokens")
