"""Output of the bench commands: a table, and a JSON file with the same head for all of them."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from neuronserve.server import __version__
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.errors import SettingsError

_WIDTH = 130  # columns of a table that goes to a file or a pipe


def write_results(path: Path, record: dict[str, Any], num_threads: int) -> None:
    """Write `record` with the host and version. Raises SettingsError when the file cannot be written."""
    host = {"machine": platform.machine(), "threads": num_threads}
    try:
        path.write_text(json.dumps({**record, "host": host, "version": __version__}, indent=2) + "\n")
    except OSError as error:
        raise SettingsError(f"--json: cannot write {path}: {error.strerror}") from error


def show(table: RenderableType) -> None:
    """Print a table on stdout, in full width also into a file or a pipe."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)


def write_engine_results(path: Path, engine: LoadedEngine, results: Sequence[dict[str, Any]]) -> None:
    """Write the first shape's figures at the top level and all under `results`. Raises as `write_results`."""
    record = {**results[0], "results": list(results), "engine": asdict(engine.info)}
    write_results(path, record, engine.runner.pool.num_threads)


def table_of(title: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[dict[str, Any]]) -> Table:
    """Table of `rows`. `columns` are heading, name of the value and its format; None is shown as a dash."""
    table = Table(title=title, title_justify="left")
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*("-" if row[name] is None else form.format(row[name]) for _, name, form in columns))
    return table
