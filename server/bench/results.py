"""Output of the bench commands: a table, and a JSON file with the same head for all of them."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from .. import __version__
from ..errors import SettingsError

_WIDTH = 130  # columns of a table that goes to a file or a pipe


def write_results(path: Path, record: dict[str, Any], num_threads: int) -> None:
    """Write `record` with the host and version. Raises SettingsError when the file cannot be written."""
    host = {"machine": platform.machine(), "threads": num_threads}
    try:
        path.write_text(json.dumps({**record, "host": host, "version": __version__}, indent=2) + "\n")
    except OSError as error:
        raise SettingsError(f"--json: cannot write {path}: {error.strerror}") from error


def show(table: RenderableType) -> None:
    """Print a table on stdout; in full width to a file or a pipe too."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)
