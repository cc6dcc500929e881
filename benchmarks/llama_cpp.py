"""llama.cpp: its own `llama-bench`, which loads the model anew for each measurement and warms up by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from benchmarks.records import DECODE_TOKENS, PREFILL_TOKENS, BenchmarkError, Case, Figures
from server.typed_json import JsonError, decode

TIMEOUT_S = 600.0


class BenchEntry(msgspec.Struct):
    """A measurement of `llama-bench -o json`."""

    n_prompt: int
    n_gen: int
    avg_ts: float  # tokens/s
    build_number: int | None = None
    build_commit: str | None = None
    model_type: str | None = None


class LlamaBench:
    """Calls llama-bench once a measurement; nothing of it stays between."""

    name = "llama.cpp"

    def __init__(self, program: Path, model: Path, threads: int) -> None:
        self._program, self._model, self._threads = program, model, threads
        self._about: dict[str, str] = {"threads": str(threads), "model": model.name}

    def start(self) -> None:
        if not self._model.is_file():
            raise BenchmarkError(f"there is no file {self._model}")

    def measure(self, case: Case, seed: int) -> Figures:
        del seed  # llama-bench draws its own tokens
        prompt, generated = (PREFILL_TOKENS, 0) if case.kind == "prefill" else (0, DECODE_TOKENS)
        entry = parse(self._run(prompt, generated), prompt, generated)
        self._about["version"] = f"{entry.build_number} ({entry.build_commit})"
        self._about["weights"] = str(entry.model_type)
        name = "prefill_tokens_per_s" if prompt else "decode_tokens_per_s"
        return {name: entry.avg_ts}

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def about(self) -> dict[str, str]:
        return self._about

    def _run(self, prompt: int, generated: int) -> str:
        command = [str(self._program), "-m", str(self._model), "-p", str(prompt), "-n", str(generated)]
        command += ["-t", str(self._threads), "-r", "1", "-o", "json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BenchmarkError(f"llama-bench: {error}") from error
        if done.returncode:
            last = "\n".join(done.stderr.splitlines()[-3:])
            raise BenchmarkError(f"llama-bench ended with code {done.returncode}:\n{last}")
        return done.stdout


def program_in(folder: Path, name: str) -> Path:
    """A program of llama.cpp's build folder. Raises BenchmarkError when there is none."""
    for program in (folder / name, folder / "bin" / name):
        if program.is_file():
            return program
    raise BenchmarkError(f"--llama-cpp: there is no {name} in {folder} or its bin folder")


def parse(output: str, prompt: int, generated: int) -> BenchEntry:
    """The entry for this many prompt and generated tokens. Raises BenchmarkError."""
    try:
        entries = decode(output, list[BenchEntry])
    except JsonError as error:
        raise BenchmarkError(f"what llama-bench printed: {error}") from error
    for entry in entries:
        if (entry.n_prompt, entry.n_gen) == (prompt, generated):
            return entry
    raise BenchmarkError(f"llama-bench printed nothing for {prompt} prompt and {generated} generated tokens")
