"""The command `python -m tools.golden [SHAPE...]` writes tests/golden/SHAPE.npz. Needs torch and transformers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.golden.golden_file import Golden, golden_path, save_golden, write_golden_checkpoint
from tools.golden.oracle import VERSIONS, Oracle
from tools.golden.sequences import token_sequences
from tools.random_checkpoint.shapes import TINY


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden", description="Write reference logits to tests/golden."
    )
    parser.add_argument("shapes", metavar="SHAPE", nargs="*", help=f"{', '.join(TINY)} (default: all)")
    shapes = parser.parse_args(argv).shapes or TINY
    for unknown in set(shapes) - set(TINY):
        parser.error(f"unknown shape {unknown!r}")
    for shape in shapes:
        path = golden_path(shape)
        save_golden(path, make_golden(shape))
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


def make_golden(shape: str) -> Golden:
    """Compute the reference logits of one shape."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / shape
        digest = write_golden_checkpoint(shape, directory)
        oracle = Oracle(directory)
        sequences = token_sequences(oracle.config.vocab_size)
        logits = [oracle.logits(sequence.token_ids)[list(sequence.positions)] for sequence in sequences]
    return Golden(shape, digest, VERSIONS, sequences, logits)


if __name__ == "__main__":
    sys.exit(main())
