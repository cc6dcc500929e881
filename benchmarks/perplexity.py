"""Perplexity of one GGUF file here and in llama.cpp: `python -m benchmarks.perplexity FILE.gguf --text TEXT`.

As llama.cpp's llama-perplexity defines it, which is run beside (--llama-cpp or the variable of `benchmarks.compare`):
the text in pieces of 512 tokens, each alone, of which the tokens of the second half are predicted; the first token of a
piece is replaced by <bos> where the tokenizer adds one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.llama_cpp import program_in, run
from benchmarks.records import BenchmarkError
from neuronserve.loadtests.result import num_cpus
from neuronserve.server.bench.accuracy import log_softmax
from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import StartError
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.text.tokenizer import Tokenizer, load_tokenizer

PIECE = 512  # tokens; llama-perplexity's default context
FINAL = re.compile(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)")
TIMEOUT_S = 3600.0


def pieces(tokenizer: Tokenizer, text: str, limit: int) -> Iterator[list[int]]:
    """At most `limit` pieces of the text, each as llama-perplexity computes it."""
    ids, without = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    bos = ids[: len(ids) - len(without)]
    for begin in range(0, min(limit * PIECE, len(ids) // PIECE * PIECE), PIECE):
        yield [*bos, *ids[begin + len(bos) : begin + PIECE]]


def losses(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Negative log-likelihoods of the tokens of the second half but its first, in nats, of logits `[tokens, vocab]`."""
    rows = log_softmax(logits[PIECE // 2 : -1].astype(np.float64))
    found: np.ndarray = -rows[np.arange(len(rows)), ids[PIECE // 2 + 1 :]]
    return found


def ours(settings: EngineSettings, directory: Path, text: str, limit: int) -> tuple[float, int]:
    """Perplexity in this engine, and of how many pieces."""
    engine = load_engine(settings.engine_config(directory), lambda line: print(line, file=sys.stderr))
    try:
        found = [losses(engine.runner.logits(ids), ids) for ids in pieces(load_tokenizer(directory), text, limit)]
    finally:
        engine.runner.close()
    if not found:
        raise StartError(f"the text has fewer than {PIECE} tokens")
    return math.exp(float(np.concatenate(found).mean())), len(found)


def theirs(program: Path, model: Path, text: Path, limit: int, threads: int) -> tuple[float, float]:
    """llama-perplexity's figure and its standard error."""
    flags = ("-m", model, "-f", text, "-c", PIECE, "--chunks", limit, "-t", threads)
    done = run(program, *flags, timeout_s=TIMEOUT_S)
    match = FINAL.search(done.stdout + done.stderr)
    if match is None:
        raise BenchmarkError(f"llama-perplexity gave no estimate: {done.stderr.splitlines()[-1:]}")
    return float(match[1]), float(match[2])


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON object."""
    args = _parser().parse_args(argv)
    settings = EngineSettings(
        model=str(args.model),
        dtype=args.dtype,
        quantization=args.quantization,
        cpu_threads=args.threads,
        max_model_len=PIECE,
        max_num_seqs=1,
        max_num_batched_tokens=PIECE,
        enable_prefix_caching=False,
    )
    directory = resolve_model(str(args.model), None, settings.gguf_cache)
    perplexity, count = ours(settings, directory, args.text.read_text(encoding="utf-8"), args.chunks)
    record: dict[str, object] = {"model": args.model.name, "dtype": args.dtype, "quantization": args.quantization}
    record |= {"pieces": count, "perplexity": round(perplexity, 4)}
    if args.llama_cpp is not None:
        program = program_in(Path(args.llama_cpp), "llama-perplexity")
        other, error = theirs(program, args.model, args.text, count, args.threads)
        record |= {"llama.cpp": other, "its standard error": error, "ratio": round(perplexity / other, 5)}
    print(json.dumps(record, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perplexity", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("--text", type=Path, required=True, help="UTF-8 text")
    parser.add_argument("--chunks", type=int, default=8, help="pieces of 512 tokens")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of this engine")
    parser.add_argument("--quantization", default="none", help="of this engine")
    parser.add_argument("--threads", type=int, default=num_cpus(), help="of both")
    variable = "NEURONSERVE_BENCH_LLAMA_CPP"
    parser.add_argument(
        "--llama-cpp", default=os.environ.get(variable) or None, help=f"its build folder or programs (or {variable})"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
