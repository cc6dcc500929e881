"""`neuronserve doctor`: the facts of this host that matter to a server, what makes it slow, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .findings import Finding, findings, require_healthy
from .host import this_host

COLOURS = {"ok": "green", "slow": "yellow", "fail": "red"}


def run_doctor(address: str, port: int, kernel_cache: str, as_json: bool) -> None:
    """Print the findings. Raises StartError, for exit code 1, when a server would not start."""
    host = this_host(address, port, kernel_cache)
    found = findings(host)
    if as_json:
        print(json.dumps({"findings": [asdict(each) for each in found], "host": host.as_json()}, indent=2))
    else:
        Console().print(_table(found))
    require_healthy(found)


def _table(found: Sequence[Finding]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found:
        table.add_row(Text(each.level, COLOURS[each.level]), each.subject, Text(each.fact))
        if each.advice:
            table.add_row("", "", Text(each.advice, "bold"))
    return table
