"""llama.cpp's server after a long context: a slot that it saved is lengthened, and the server restores it."""

from __future__ import annotations

import json
import random
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.llama_slot import lengthen
from benchmarks.process import Hosted, Process, free_port, wait_for_url
from benchmarks.records import DEPTH_DECODE_TOKENS, DEPTH_PROMPT_TOKENS, BenchmarkError, Case, Figures
from neuronserve.server.typed_json import JsonError, decode

TIMEOUT_S = 7200.0  # 131,072 tokens on two processors
_SAVED_TOKENS = 512
_WORDS = range(100, 1000)  # tokens that every vocabulary has


class Timings(msgspec.Struct):
    """Timings of an answer of `POST /completion`."""

    prompt_n: int  # computed tokens, without those of the slot
    prompt_ms: float
    predicted_n: int
    predicted_ms: float  # from the first token on


class Completion(msgspec.Struct):
    timings: Timings


class LlamaDepth(Hosted):
    """`llama-server` with one slot and flash attention. The case's context is restored before its first turn."""

    def __init__(self, program: Path, model: Path, threads: int, cache_type: str, largest: int) -> None:
        """`largest` is the longest context of any case."""
        super().__init__("llama.cpp")
        self._model = model
        room = largest + DEPTH_PROMPT_TOKENS + DEPTH_DECODE_TOKENS + 1
        self._command = [str(program), "-m", str(model), "-np", "1", "-c", str(room), "--no-webui"]
        self._command += ["-t", str(threads), "-tb", str(threads), "-fa", "on", "-ctk", cache_type, "-ctv", cache_type]
        self._about = {"threads": str(threads), "model": model.name, "cache": cache_type}
        self._context: list[int] = []  # tokens in the slot
        self._url = ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # holds saved slots

    def start(self) -> None:
        if not self._model.is_file():
            raise BenchmarkError(f"there is no file {self._model}")
        self._folder = tempfile.TemporaryDirectory(prefix="benchmark-")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        address = ["--host", "127.0.0.1", "--port", str(port), "--slot-save-path", f"{self._folder.name}/"]
        self._process = Process([*self._command, *address])
        wait_for_url(self._process, f"{self._url}/health")

    def stop(self) -> None:
        super().stop()
        if self._folder is not None:
            self._folder.cleanup()

    def measure(self, case: Case, seed: int) -> Figures:
        if len(self._context) != case.size:
            self._restore(case.size)
        prompt = self._context + random.Random(seed).choices(_WORDS, k=DEPTH_PROMPT_TOKENS)
        timings = self._complete(prompt, DEPTH_DECODE_TOKENS + 1)
        if timings.prompt_n != DEPTH_PROMPT_TOKENS or timings.predicted_n != DEPTH_DECODE_TOKENS + 1:
            raise BenchmarkError(f"llama-server computed {timings.prompt_n} and {timings.predicted_n} tokens")
        return {
            "prefill_tokens_per_s": 1e3 * DEPTH_PROMPT_TOKENS / timings.prompt_ms,
            "decode_tokens_per_s": 1e3 * DEPTH_DECODE_TOKENS / timings.predicted_ms,
        }

    def _restore(self, num_tokens: int) -> None:
        """Make the slot hold `num_tokens` tokens: those of a short prompt, repeated."""
        assert self._folder is not None
        folder = Path(self._folder.name)
        words = [_WORDS[at % len(_WORDS)] for at in range(min(_SAVED_TOKENS, num_tokens))]
        self._complete(words, 1)
        self._post("/slots/0?action=save", {"filename": "saved"})
        context = [words[at % len(words)] for at in range(num_tokens)]
        lengthen(folder / "saved", folder / "longer", context)
        self._post("/slots/0?action=restore", {"filename": "longer"})
        (folder / "longer").unlink()  # gigabytes
        self._context = context

    def _complete(self, prompt: list[int], num_tokens: int) -> Timings:
        body = {"prompt": prompt, "n_predict": num_tokens, "id_slot": 0, "cache_prompt": True}
        answer = self._post("/completion", {**body, "ignore_eos": True, "temperature": 0.0})
        try:
            return decode(answer, Completion).timings
        except JsonError as error:
            raise BenchmarkError(f"answer of llama-server: {error}") from error

    def _post(self, path: str, body: Mapping[str, Any]) -> bytes:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            words = error.read(200).decode("utf-8", "replace")
            raise BenchmarkError(f"llama-server: {path}: {error.code} {words}") from error
        except OSError as error:
            raise BenchmarkError(f"llama-server: {path}: {error}") from error
        return answer
