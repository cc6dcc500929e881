"""`neuronserve survive` in a terminal: a line as each trial ends, a table, the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ...server.settings.base import write_report
from .survive import GOOD, Outcome, Plan, survive

STYLES = {"survived": "green", "not met": "dim"}
WORDS = {True: "the same", False: "differs", None: "varies anyway"}
WIDTH = 100  # columns of a table that goes to a file or a pipe


def run_survive(plan: Plan, json_file: Path | None) -> int:
    """Run all trials. Returns 1 if the command did not survive one. Raises the errors of `survive`."""
    outcomes = []
    for outcome in survive(plan):
        outcomes.append(outcome)
        print(f"{outcome.trial.name}: {outcome.verdict}", file=sys.stderr, flush=True)
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(_table(outcomes))
    for outcome in outcomes:
        if outcome.verdict == "failed" and outcome.run.errors:
            print(f"\n{outcome.trial.name}: stderr ends with\n{outcome.run.errors.rstrip()}", file=sys.stderr)
    write_report(json_file, [_as_json(outcome) for outcome in outcomes])
    return int(any(outcome.verdict not in GOOD for outcome in outcomes))


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table("trial", "requests hit", "exit", "seconds", "output", "verdict")
    for each in outcomes:
        code = "none" if each.run.exit_code is None else str(each.run.exit_code)
        style = STYLES.get(each.verdict, "red")
        words = WORDS[each.is_equal] if each.run.exit_code == 0 else ""
        row = (each.trial.name, str(each.num_met), code, f"{each.run.seconds:.1f}", words)
        table.add_row(*row, f"[{style}]{each.verdict}[/]")
    return table


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "trial": outcome.trial.name,
        "fault": outcome.trial.rule,
        "requests_hit": outcome.num_met,
        "exit_code": outcome.run.exit_code,
        "seconds": round(outcome.run.seconds, 3),
        "is_output_equal": outcome.is_equal,
        "verdict": outcome.verdict,
    }
