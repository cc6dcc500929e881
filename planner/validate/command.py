"""`neuronserve validate` in a terminal: print the summary, write the page and the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column
from rich.table import Table as TerminalTable

from ...server.errors import SettingsError
from ...server.settings.base import write_report
from .document import Table
from .html import html
from .markdown import markdown
from .page import sections, short, unknown
from .report import validate
from .tables import accuracies

TITLE = "How far modelled times can be trusted"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; None: not that one."""

    html: Path | None
    markdown: Path | None
    json_file: Path | None


def run_validation(data: Path, encoders: Path | None, outputs: Outputs) -> None:
    """Compare the calibration in force with tables of published rows. Raises SettingsError."""
    found = validate(data, encoders)
    release, console = found.release(), Console()
    for which, title in (("unseen", "Series that the fit has not seen"), ("seen", "Series that the fit has seen")):
        console.print(_terminal(accuracies(release, which), title))
    for line in (*short(release), *unknown(release, found.calibration)):
        console.print(f"- {line}", highlight=False)
    page = sections(found)
    _write(outputs.html, "--html", html(TITLE, page))
    _write(outputs.markdown, "--markdown", markdown(TITLE, page))
    write_report(outputs.json_file, found.as_json())


def _terminal(table: Table, title: str) -> TerminalTable:
    shown = TerminalTable(Column(table.head[0], no_wrap=True), *table.head[1:], title=title)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _write(path: Path | None, flag: str, text: str) -> None:
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{flag}: cannot write {path}: {error.strerror}") from error
