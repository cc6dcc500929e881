"""The command `python -m benchmarks.compare CHECKPOINT --workload decode prefill ...`. Reads argv and the environment.

Flags, or variables such as NEURONSERVE_BENCH_LLAMA_CPP, say where peers are; a missing peer is reported and skipped.
Contenders take turns within each round, and all others are stopped meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from benchmarks import report
from benchmarks.interleave import CaseResult, Limits
from benchmarks.peers import LLAMA_CACHE_TYPES, OURS, PEERS, Installed
from benchmarks.quality_rows import Row, of_contenders, read_rows
from benchmarks.records import BenchmarkError, Case, Kind
from benchmarks.session import Comparison
from neuronserve.loadtests.result import num_cpus
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.header import is_gguf
from neuronserve.server.config.formats import LevelIsa
from neuronserve.server.host.isa import BY_ISA
from neuronserve.server.kernels.isa.target import host_features
from neuronserve.server.settings.engine import EngineSettings

ENVIRONMENT = "NEURONSERVE_BENCH_"
PATHS = {
    "--llama-cpp": "folder of llama.cpp's programs, or its build folder",
    "--llama-cpp-model": "the checkpoint as GGUF, Q8_0 for a comparison in eight bits",
    "--openvino-python": "Python with openvino-genai",
    "--openvino-model": "the checkpoint as exported for OpenVINO GenAI, INT8 weights",
    "--vllm-python": "Python with vLLM for CPUs",
    "--vllm-model": "the checkpoint as compressed-tensors W8A8",
    "--sentence-transformers-python": "Python with sentence-transformers",
    "--onnxruntime-python": "Python with onnxruntime and tokenizers",
    "--onnxruntime-model": "the encoder as ONNX in INT8, by benchmarks.embed_export",
}
EXIT_OK, EXIT_NOTHING = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0 if this engine was measured in every case, 1 if not, 2 for bad arguments."""
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_NOTHING))  # so that child processes are ended too
    installed = Installed(
        args.checkpoint,
        args.quantization,
        args.threads,
        args.kv_cache_dtype,
        args.isa,
        **{_field(flag): _path(args, flag) for flag in PATHS},
    )
    console = Console(stderr=True)
    quality = of_contenders(args.quality, installed)
    session = Comparison(
        installed,
        Limits(args.repetitions, args.max_seconds),
        args.peers,
        on_line=lambda line: console.print(line, highlight=False),
    )
    results = [result for kind, cases in _cases(args).items() for result in session.run(kind, cases)]
    record = report.as_json(results, installed, session.about, quality)
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    return _report(results, quality)


def _report(results: list[CaseResult], quality: Mapping[str, Row]) -> int:
    console = report.console()
    console.print(report.table(results, quality))
    for line in report.notes(results):
        console.print(line, markup=False)
    if not quality and any(len(result.rounds) > 1 for result in results):
        console.print("No quality of the formats is shown: name a record of benchmarks.quality with --quality")
    return EXIT_OK if all(result.rounds.get(OURS) for result in results) else EXIT_NOTHING


def _cases(args: argparse.Namespace) -> dict[Kind, list[Case]]:
    """Return the cases to measure, by kind."""
    cases: dict[Kind, list[Case]] = {}
    for kind in args.workload:
        if kind == "http":
            cases[kind] = [Case(kind, n, _num_requests(n, args.requests_per_connection)) for n in args.connections]
        elif kind in ("context", "depth"):
            cases[kind] = [Case(kind, n) for n in args.context_lens]
        else:
            cases[kind] = [Case(kind)]
    return cases


def _num_requests(connections: int, each: int) -> int:
    return max(4, connections * each)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=(__doc__ or "").splitlines()[0])
    kinds = get_args(Kind)
    parser.add_argument(
        "checkpoint",
        type=_existing,
        help="Hugging Face checkpoint directory, or a GGUF file, which llama.cpp then loads too",
    )
    parser.add_argument("--workload", nargs="+", choices=kinds, default=["decode", "prefill"], help="what to compare")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=[], help="peers (default: all installed)")
    parser.add_argument("--repetitions", type=_positive, default=5, help="rounds; from 6 on, intervals cover 95 %%")
    parser.add_argument("--max-seconds", type=float, help="begin no further round of a case after this time")
    parser.add_argument(
        "--connections", nargs="+", type=_positive, default=[1, 8, 16, 32], help="concurrent requests of http"
    )
    parser.add_argument(
        "--requests-per-connection",
        type=_positive,
        default=2,
        help="requests of http for each connection, at least 4 in total",
    )
    parser.add_argument("--context-lens", nargs="+", type=_positive, default=[8192], help="tokens of context and depth")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=list(LLAMA_CACHE_TYPES),
        default="auto",
        help="type of this engine's KV cache in context and depth; llama.cpp uses q8_0 for 8 bits, else f16",
    )
    parser.add_argument("--quantization", default="int8", help="weight format of this engine")
    parser.add_argument(
        "--isa",
        type=_host_isa,
        metavar="ISA",
        help="instruction set of this engine's kernels (default: the host's best); name a llama.cpp built for the same",
    )
    parser.add_argument("--threads", type=_positive, default=num_cpus(), help="threads of every contender")
    parser.add_argument("--json", type=_writable, metavar="FILE", help="write all measurements to this file")
    parser.add_argument(
        "--quality",
        type=_quality,
        default=[],
        metavar="FILE",
        help="file of `benchmarks.quality --json`: adds KL and top-1 of the formats to the table",
    )
    for flag, what in PATHS.items():
        parser.add_argument(flag, type=Path, metavar="PATH", help=f"{what} (or {_variable(flag)})")
    return parser


def _field(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _variable(flag: str) -> str:
    return ENVIRONMENT + _field(flag).upper()


def _path(args: argparse.Namespace, flag: str) -> Path | None:
    given: Path | None = getattr(args, _field(flag))
    value = os.environ.get(_variable(flag))
    return given if given is not None else Path(value) if value else None


def _existing(text: str) -> Path:
    """Return the path of a checkpoint, or of the directory that stands for a GGUF file."""
    if is_gguf(Path(text)):
        return gguf_directory(Path(text), EngineSettings().gguf_cache)
    if not Path(text, "config.json").is_file():
        raise argparse.ArgumentTypeError(f"there is no config.json in {text}")
    return Path(text)


def _host_isa(text: str) -> LevelIsa:
    """Return an instruction set that this host has."""
    target = BY_ISA.get(text)
    if target is None:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(BY_ISA)}, not {text}")
    if lacks := target.lacks(host_features()):
        raise argparse.ArgumentTypeError(f"this host has no {text}: it lacks {', '.join(lacks)}")
    return target.isa


def _quality(text: str) -> list[Row]:
    try:
        return read_rows(Path(text))
    except BenchmarkError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _writable(text: str) -> Path:
    if not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {Path(text).parent}")
    return Path(text)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
