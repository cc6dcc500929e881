"""Perplexity of one GGUF file here and in llama.cpp: `python -m benchmarks.perplexity FILE.gguf --text TEXT`.

It follows llama.cpp's llama-perplexity, which runs too if --llama-cpp or the variable of `benchmarks.compare` names it:
the text is cut into pieces of 512 tokens, each computed alone, and the tokens of the second half are predicted. If the
tokenizer adds <bos>, it replaces the first token of a piece.
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
    """Yield at most `limit` pieces of the text, as llama-perplexity computes them."""
    ids, without = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
    bos = ids[: len(ids) - len(without)]
    for begin in range(0, min(limit * PIECE, len(ids) // PIECE * PIECE), PIECE):
        yield [*bos, *ids[begin + len(bos) : begin + PIECE]]


def losses(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Return the negative log-likelihoods, in nats, of a piece's second half except its first token."""
    rows = log_softmax(logits[PIECE // 2 : -1].astype(np.float64))
    found: np.ndarray = -rows[np.arange(len(rows)), ids[PIECE // 2 + 1 :]]
    return found


def ours(settings: EngineSettings, directory: Path, text: str, limit: int) -> tuple[float, int]:
    """Return the perplexity in this engine, and the number of pieces."""
    engine = load_engine(settings.engine_config(directory), lambda line: print(line, file=sys.stderr))
    try:
        found = [losses(engine.runner.logits(ids), ids) for ids in pieces(load_tokenizer(directory), text, limit)]
    finally:
        engine.runner.close()
    if not found:
        raise StartError(f"the text has fewer than {PIECE} tokens")
    return math.exp(float(np.concatenate(found).mean())), len(found)


def theirs(program: Path, model: Path, text: Path, limit: int, threads: int) -> tuple[float, float]:
    """Return llama-perplexity's figure and its standard error."""
    flags = ("-m", model, "-f", text, "-c", PIECE, "--chunks", limit, "-t", threads)
    done = run(program, *flags, timeout_s=TIMEOUT_S)
    match = FINAL.search(done.stdout + done.stderr)
    if match is None:
        raise BenchmarkError(f"llama-perplexity printed no estimate: {done.stderr.splitlines()[-1:]}")
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
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="dtype of this engine")
    parser.add_argument("--quantization", default="none", help="weight format of this engine")
    parser.add_argument("--threads", type=int, default=num_cpus(), help="threads of both")
    variable = "NEURONSERVE_BENCH_LLAMA_CPP"
    parser.add_argument(
        "--llama-cpp",
        default=os.environ.get(variable) or None,
        help=f"folder of llama.cpp or of its programs (or {variable})",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
