"""This engine in a process of its own: loads once, then measures the case of each line of stdin."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.records import (
    CONTEXT_DECODE_TOKENS,
    DECODE_TOKENS,
    DEPTH_DECODE_TOKENS,
    DEPTH_PROMPT_TOKENS,
    INPUT_LEN,
    OFFLINE_SEQUENCES,
    OUTPUT_LEN,
    PREFILL_TOKENS,
    Figures,
    Kind,
)
from benchmarks.worker import PREFIX
from neuronserve.server import __version__
from neuronserve.server.bench.drive import EngineDriver, StepTime
from neuronserve.server.bench.options import BatchShape
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import StartError
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.typed_json import decode

WORKLOADS = {
    "decode": BatchShape(1, 1, DECODE_TOKENS + 1),  # as llama-bench: from an empty context, without the first token
    "prefill": BatchShape(1, PREFILL_TOKENS, 1),
    "offline": BatchShape(OFFLINE_SEQUENCES, INPUT_LEN, OUTPUT_LEN),
}


def figures(kind: Kind, steps: list[StepTime]) -> Figures:
    """Return the metrics of a case from the steps of one run."""
    if kind == "offline":
        return {"output_tokens_per_s": OFFLINE_SEQUENCES * OUTPUT_LEN / sum(step.wall_s for step in steps)}
    found: Figures = {}
    if kind != "decode":
        prefill = [step for step in steps if step.num_prefill_tokens]
        found["prefill_tokens_per_s"] = _rate([step.num_prefill_tokens for step in prefill], prefill)
    if kind != "prefill":
        decode = [step for step in steps if step.num_decode_tokens]
        found["decode_tokens_per_s"] = _rate([step.num_decode_tokens for step in decode], decode)
    return found


def _rate(num_tokens: list[int], steps: list[StepTime]) -> float:
    return sum(num_tokens) / sum(step.wall_s for step in steps)


def shape_of(kind: Kind, size: int) -> BatchShape:
    """Return the batch of a case."""
    if kind == "depth":
        return BatchShape(1, DEPTH_PROMPT_TOKENS, DEPTH_DECODE_TOKENS + 1, context_len=size)
    return BatchShape(1, size, CONTEXT_DECODE_TOKENS + 1) if kind == "context" else WORKLOADS[kind]


def driver(args: argparse.Namespace) -> tuple[EngineDriver, str]:
    """Return an engine with room for every workload, and its facts."""
    long = [shape_of("context", args.context_len), shape_of("depth", args.context_len)]
    shapes = long if args.context_len else list(WORKLOADS.values())
    settings = EngineSettings(
        model=str(args.model),
        quantization=args.quantization,
        cpu_threads=args.threads,
        kv_cache_dtype=args.kv_cache_dtype,
        max_model_len=max(w.total_len for w in shapes),
        max_num_seqs=max(w.batch_size for w in shapes),
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_prefix_caching=False,
        allow_unsupported_types=True,  # also measures formats that the default device has no type for
    )
    engine = load_engine(settings.engine_config(Path(args.model)), lambda line: print(line, file=sys.stderr))
    return EngineDriver(engine), engine.info.notes[-1] if engine.info.notes else ""


def write_reply(reply: dict[str, Any]) -> None:
    print(PREFIX + json.dumps(reply), flush=True)


class _CaseLine(msgspec.Struct):
    """A case to measure: one line of standard input."""

    kind: Kind
    size: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context-len", type=int, default=0, help="longest prompt or context, if only those run")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--max-num-batched-tokens", type=int, default=PREFILL_TOKENS)
    args = parser.parse_args()
    try:
        drives, note = driver(args)
    except StartError as error:
        write_reply({"error": str(error)})
        return
    write_reply({"version": __version__, "quantization": args.quantization, "threads": args.threads, "engine": note})
    for line in sys.stdin:
        case = decode(line, _CaseLine)
        shape = shape_of(case.kind, case.size)
        if case.kind in ("prefill", "depth"):  # llama-bench warms up in each call too; the other runs are long
            drives.run(shape)
        write_reply(figures(case.kind, drives.run(shape)))


if __name__ == "__main__":
    main()
