"""Contenders of each kind of case among the installed programs, with a reason for each that is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import servers
from benchmarks.contention import Contended
from benchmarks.llama_cpp import LlamaBench, LlamaContext, program_in
from benchmarks.llama_depth import LlamaDepth
from benchmarks.records import (
    DECODE_TOKENS,
    INPUT_LEN,
    OFFLINE_SEQUENCES,
    OUTPUT_LEN,
    PREFILL_TOKENS,
    BenchmarkError,
    Contender,
    Kind,
    Missing,
)
from benchmarks.worker import WorkerContender
from neuronserve.server.checkpoint.gguf.directory import linked_parts
from neuronserve.server.config.formats import LevelIsa
from neuronserve.server.host.isa import BY_ISA

OURS = "neuronserve"
LLAMA_CACHE_TYPES = {"auto": "f16", "int8": "q8_0", "fp8": "q8_0"}
OPENVINO_WORKER = Path(__file__).with_name("openvino_worker.py")  # a file, because another Python runs it


@dataclass(frozen=True, slots=True)
class Installed:
    """Paths and commands of the peers; None if not installed."""

    checkpoint: Path
    quantization: str
    threads: int
    kv_cache_dtype: str = "auto"  # of long contexts
    isa: LevelIsa | None = None  # for which this engine compiles; None: the host's best
    llama_cpp: Path | None = None  # folder with its programs, or its build folder
    llama_cpp_model: Path | None = None  # GGUF
    openvino_python: Path | None = None
    openvino_model: Path | None = None
    vllm_python: Path | None = None
    vllm_model: Path | None = None
    sentence_transformers_python: Path | None = None
    onnxruntime_python: Path | None = None
    onnxruntime_model: Path | None = None


def contenders(kind: Kind, installed: Installed, largest: int) -> Iterator[Contender | Missing]:
    """Yield this engine, then each peer of the kind, or why it is missing; `largest` is the largest case size."""
    yield ours(kind, installed, largest)
    for name, makers in PEERS.items():
        if kind in makers:
            try:
                yield makers[kind](installed, largest)
            except BenchmarkError as error:
                yield Missing(name, str(error))


def ours(kind: Kind, installed: Installed, largest: int = 0) -> Contender:
    """Return this engine, in a process of its own or behind HTTP."""
    level = BY_ISA[installed.isa].environment if installed.isa else {}
    if kind == "http":
        command = servers.neuronserve(installed.checkpoint, installed.quantization, installed.threads)
        return servers.ServerContender(OURS, replace(command, environment=level), installed.checkpoint)
    arguments = [str(installed.checkpoint), "--quantization", installed.quantization]
    worker = "benchmarks.embed_worker" if kind == "embed" else "benchmarks.engine_worker"
    command_line = [sys.executable, "-m", worker, *arguments, "--threads", str(installed.threads)]
    if kind in ("context", "depth"):
        command_line += ["--context-len", str(largest), "--kv-cache-dtype", installed.kv_cache_dtype]
    contender = WorkerContender(OURS, command_line, level)
    return Contended(contender) if kind == "contention" else contender


def _llama_bench(installed: Installed, largest: int) -> Contender:
    del largest
    return LlamaBench(_llama_program(installed, "llama-bench"), _llama_model(installed), installed.threads)


def _llama_context(installed: Installed, largest: int) -> Contender:
    del largest
    program, model = _llama_program(installed, "llama-batched-bench"), _llama_model(installed)
    return LlamaContext(program, model, installed.threads, LLAMA_CACHE_TYPES[installed.kv_cache_dtype])


def _llama_depth(installed: Installed, largest: int) -> Contender:
    program, model = _llama_program(installed, "llama-server"), _llama_model(installed)
    return LlamaDepth(program, model, installed.threads, LLAMA_CACHE_TYPES[installed.kv_cache_dtype], largest)


def _llama_contended(installed: Installed, largest: int) -> Contender:
    return Contended(_llama_bench(installed, largest))


def _llama_server(installed: Installed, largest: int) -> Contender:
    program, model = _llama_program(installed, "llama-server"), _llama_model(installed)
    command = servers.llama_server(program, model, installed.threads, largest)
    return servers.ServerContender("llama.cpp", command, installed.checkpoint)


def _openvino(installed: Installed, largest: int) -> Contender:
    del largest
    python = _given(installed.openvino_python, "--openvino-python")
    model = _given(installed.openvino_model, "--openvino-model")
    sizes = (PREFILL_TOKENS, DECODE_TOKENS, OFFLINE_SEQUENCES, INPUT_LEN, OUTPUT_LEN)
    command = [python, OPENVINO_WORKER, model, installed.threads, *sizes]
    return WorkerContender("OpenVINO", [str(argument) for argument in command])


def _vllm(installed: Installed, largest: int) -> Contender:
    del largest
    python, model = _given(installed.vllm_python, "--vllm-python"), _given(installed.vllm_model, "--vllm-model")
    return servers.ServerContender("vLLM", servers.vllm(python, model, installed.threads), installed.checkpoint)


def _sentence_transformers(installed: Installed, largest: int) -> Contender:
    del largest
    return _embeds(installed, "sentence-transformers", installed.sentence_transformers_python)


def _onnxruntime(installed: Installed, largest: int) -> Contender:
    del largest
    model = _given(installed.onnxruntime_model, "--onnxruntime-model")
    return _embeds(installed, "ONNX Runtime", installed.onnxruntime_python, model)


def _embeds(installed: Installed, name: str, python: Path | None, *model: Path) -> Contender:
    """Return a peer for encoders. It imports the texts of this folder and nothing else of the project."""
    flag = "--sentence-transformers-python" if not model else "--onnxruntime-python"
    command = [_given(python, flag), "-m", "benchmarks.embed_peer", installed.checkpoint, installed.threads, *model]
    return WorkerContender(name, [str(each) for each in command], {"PYTHONPATH": str(Path(__file__).parent.parent)})


PEERS = {
    "llama.cpp": {
        "decode": _llama_bench,
        "prefill": _llama_bench,
        "http": _llama_server,
        "contention": _llama_contended,
        "context": _llama_context,
        "depth": _llama_depth,
    },
    "OpenVINO": {"decode": _openvino, "prefill": _openvino, "offline": _openvino},
    "vLLM": {"http": _vllm},
    "sentence-transformers": {"embed": _sentence_transformers},
    "ONNX Runtime": {"embed": _onnxruntime},
}


def _given(path: Path | None, flag: str) -> Path:
    if path is None:
        raise BenchmarkError(f"{flag} is not given")
    if not path.exists():
        raise BenchmarkError(f"{flag}: there is no {path}")
    return path


def llama_model(installed: Installed) -> Path | None:
    """Return llama.cpp's model file: the given one, or the GGUF file that is measured."""
    same, *_ = *linked_parts(installed.checkpoint), None
    return installed.llama_cpp_model or same


def _llama_model(installed: Installed) -> Path:
    return _given(llama_model(installed), "--llama-cpp-model")


def _llama_program(installed: Installed, name: str) -> Path:
    return program_in(_given(installed.llama_cpp, "--llama-cpp"), name)
