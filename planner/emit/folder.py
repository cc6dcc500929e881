"""The folder of `plan --emit`: chooses the row and writes its files. Other files stay untouched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...server.errors import SettingsError
from ..plan.report import Candidate, PlanReport
from ..plan.table import best_batches
from .deployment import deployment_of
from .readme import readme
from .targets import rendered

README = "README.md"
_EXECUTABLE = 0o755


@dataclass(frozen=True, slots=True)
class Emission:
    """Directory of a row's files, and the row's number in the printed tables, from 1; None: the recommended row."""

    directory: Path
    row: int | None = None


def emit(report: PlanReport, emission: Emission) -> tuple[Path, ...]:
    """Write the files of the row. Returns their paths.

    Raises SettingsError for a missing row, a row that no target can express and, before anything is written, for an
    existing file with other contents.
    """
    found = texts_of(report, _row(report, emission.row))
    texts = {emission.directory / path: text for path, text in found.items()}
    try:
        for path, text in texts.items():
            if path.exists() and path.read_bytes() != text.encode():
                raise SettingsError(f"emit: {path} is there with other contents: name another directory, or remove it")
        emission.directory.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(_EXECUTABLE)
    except OSError as error:
        raise SettingsError(f"emit: cannot write {error.filename}: {error.strerror}") from error
    return tuple(texts)


def texts_of(report: PlanReport, row: Candidate) -> dict[str, str]:
    """Return the files of a row by their names. Raises SettingsError for a row that no target can express."""
    d = deployment_of(report, row)
    files = rendered(d)
    return {**files.texts, README: readme(d, files)}


def _row(report: PlanReport, number: int | None) -> Candidate:
    if number is None:
        if report.best is None:
            raise SettingsError(
                "emit: no configuration holds the limits; emit_row 1 is the first of those that miss them"
            )
        return report.best
    rows = best_batches(report.candidates)
    if not 1 <= number <= len(rows):
        raise SettingsError(f"emit_row is {number}: the tables have {len(rows)} rows of configurations that fit")
    return rows[number - 1]
