"""Write the tables of docs/ that follow from the code: `python -m tools.doc_tables [--check] [PAGE ...]`.

A table stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`. With --check nothing is written, and the exit
code is 1 when a page says something else. A PAGE is a path below docs/. guides/load-tests.md takes a minute or two: its
rows are plans and simulations.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from neuronserve.planner.validate.releases import releases
from neuronserve.server.cost.calibration import shipped_calibration
from tools import (
    cost_tables,
    errors_table,
    family_table,
    memory_accounts,
    metrics_table,
    models_table,
    pair_table,
    plan_table,
    settings_table,
    speed_page,
    validation_tables,
)

DOCS = Path(__file__).resolve().parent.parent / "docs"
Blocks = Mapping[str, Callable[[], str]]

PAGES: dict[str, Blocks] = {
    "guides/load-tests.md": {"plans": plan_table.table},
    "internals/compare.md": speed_page.blocks(),
    "internals/cost-model.md": cost_tables.blocks(shipped_calibration()),
    "internals/planner.md": {"pairs": pair_table.table, "stand_ins": pair_table.stand_ins},
    "internals/validation.md": validation_tables.blocks(releases()[-1], shipped_calibration()),
    "reference/errors.md": {"errors": errors_table.table},
    "reference/hardware.md": {"accounts": memory_accounts.table},
    "reference/metrics.md": {"families": metrics_table.table},
    "reference/models.md": {"families": family_table.table, "models": models_table.table},
    "reference/settings.md": {"settings": settings_table.table},
}

_BLOCK = re.compile(r"(<!-- (\w+): begin -->\n).*?(<!-- \2: end -->)", re.DOTALL)


def written(page: str, blocks: Blocks) -> str:
    """Return the text of a page with its tables made again. Raises KeyError for a block without a table."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]().strip()}\n\n{found[3]}", page)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with --check print what is stale; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.doc_tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: all of {', '.join(PAGES)}")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.pages) - PAGES.keys():
        parser.error(f"{', '.join(sorted(unknown))} has no table: known are {', '.join(PAGES)}")
    stale = False
    for name in arguments.pages or PAGES:
        old = (DOCS / name).read_text()
        new = written(old, PAGES[name])
        if not arguments.check:
            (DOCS / name).write_text(new)
        elif new != old:
            stale = True
            lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"docs/{name}", "by the code", lineterm="")
            print(*lines, sep="\n")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
