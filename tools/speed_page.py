"""Draws docs/images/speed-*.svg and makes the lists of docs/internals/compare.md: `python -m tools.speed_page`.

The figures are those kept in benchmarks/results: a comparison's JSON that is put there appears on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.picture import drawn
from benchmarks.published import Line, by_level, published, quality
from benchmarks.quality_rows import Row

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "images"


def pictures() -> Mapping[Path, str]:
    """Return the path and the SVG of each level's plot."""
    return {PICTURES / f"speed-{isa}.svg": drawn(lines) for isa, lines in by_level(published()).items()}


def levels() -> str:
    """Return the plot of each level."""
    return "\n\n".join(_level(isa, lines) for isa, lines in by_level(published()).items())


def qualities() -> str:
    """Return the table of formats."""
    head = "| model | engine | weights | KL | top-1 | perplexity | prefill 512 | decode |\n|---|---|---|" + "---:|" * 5
    return "\n".join((head, *map(_quality, quality())))


def blocks() -> Mapping[str, Callable[[], str]]:
    """Return the tables by the name of their place on the page."""
    return {"levels": levels, "qualities": qualities}


def main() -> int:
    """Write the pictures; returns the exit code. `tools.doc_tables` writes the tables."""
    for path, picture in pictures().items():
        path.write_text(picture)
    return 0


def _level(isa: str, lines: Sequence[Line]) -> str:
    hosts = ", ".join(dict.fromkeys(f"{line.host} on {line.date}" for line in lines))
    return f"### {isa}\n\n{hosts}.\n\n![Ratios on {isa}](../images/speed-{isa}.svg)"


def _quality(row: Row) -> str:
    speeds = [f"{each:,.0f}" if each else "" for each in (row.prefill_tokens_per_s, row.decode_tokens_per_s)]
    figures = (f"{row.kl:.4f}", f"{row.top1:.1%}", f"{row.perplexity:.3f}")
    return f"| {' | '.join((row.model, row.engine, row.weights, *figures, *speeds))} |"


if __name__ == "__main__":
    sys.exit(main())
