"""The command `python -m tools.random_checkpoint SHAPE DIR`. Reads argv and prints one progress line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from neuronserve.server.errors import CheckpointError
from tools.random_checkpoint.shapes import SHAPES
from tools.random_checkpoint.writer import TORCH_DTYPES, Options, write_checkpoint


def main(argv: list[str] | None = None) -> int:
    """Return exit code 0 if the checkpoint is written, 2 if it cannot be."""
    args = _parser().parse_args(argv)
    options = Options(args.dtype, args.seed, args.layers, args.vocab, args.shards)
    try:
        write_checkpoint(args.shape, args.directory, options, _progress)
    except (ValueError, OSError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.random_checkpoint",
        description="Write a Hugging Face checkpoint with seeded random weights and a working tokenizer.",
    )
    parser.add_argument("shape", metavar="SHAPE", choices=SHAPES, help=", ".join(SHAPES))
    parser.add_argument("directory", metavar="DIR", type=Path, help="empty or absent")
    parser.add_argument("--layers", type=_positive, help="number of layers (default: the shape's)")
    parser.add_argument("--seed", type=_natural, default=0)
    parser.add_argument("--dtype", choices=TORCH_DTYPES, default="bf16")
    parser.add_argument("--vocab", type=_positive, help="vocabulary size (default: the shape's)")
    parser.add_argument("--shards", type=_positive, default=1, help="number of safetensors files")
    return parser


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {value}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def _progress(done: int, total: int) -> None:
    """Redraw the line on a terminal; elsewhere print it once, at the end."""
    if sys.stderr.isatty() or done == total:
        print(f"\rweights: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
