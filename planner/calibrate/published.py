"""Reader of tables of published measurements (CSV).

COLUMNS are required, and those of LOAD_ for load tests; others are ignored. Empty cells mean "not stated".
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...server.cost.work import CURRENT_SDK
from ...server.errors import SettingsError

TEXT = ("row_id", "model", "arch", "source_group", "weight_dtype", "instance", "framework")
LABELS = ("neuron_sdk", "quality", "tpot_stat", "use_decode_fit", "use_prefill_fit")
OPTIONAL_LABELS = ("arrival", "ttft_stat", "notes", "date")  # a table may have none of them
COUNTS = ("tp", "batch_size", "max_seq_len")
LENGTHS = ("input_len", "output_len")  # load tests state means, which are rounded
SHAPE = {  # columns, and the fields of DecoderSizes that they are
    "n_layers": "num_layers",
    "hidden_size": "hidden_size",
    "n_heads": "num_heads",
    "n_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
EXPERTS = {"n_experts": "num_experts", "experts_per_token": "experts_per_token"}
MEASURES = ("params_b", "tpot_ms", "ttft_ms")
LOAD_COUNTS = ("dp", "concurrency")
LOAD_MEASURES = ("output_tok_s", "req_per_s")
COLUMNS = (*TEXT, *LABELS, *COUNTS, *LENGTHS, *SHAPE, *EXPERTS, *MEASURES)

_SDK = re.compile(r"2\.(\d+)")
_LNC = re.compile(r"\blnc ?(\d)\b")

Cells = dict[str, str]  # by column


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A measurement: texts and numbers by column name. Numbers that are not stated are absent."""

    line: int  # of the file, the header being 1
    texts: dict[str, str]
    counts: dict[str, int]  # positive; lengths among them
    measures: dict[str, float]

    @property
    def row_id(self) -> str:
        return self.texts["row_id"] or f"line {self.line}"

    @property
    def sdk(self) -> int:
        """Minor release of the Neuron SDK; the current one if the row names none."""
        found = _SDK.search(self.texts["neuron_sdk"])
        return int(found[1]) if found else CURRENT_SDK

    @property
    def lnc(self) -> int | None:
        """Physical cores in a logical one, by the notes of the row; None if they name none."""
        found = _LNC.search(self.label("notes"))
        return int(found[1]) if found else None

    @property
    def samples_on_host(self) -> bool:
        """Whether logits leave the device at every step, by the notes of the row."""
        return "cpu sampling" in self.label("notes")

    def label(self, name: str) -> str:
        """Return a text column in lower case."""
        return self.texts[name].lower()


def read_rows(path: Path) -> list[PublishedRow]:
    """Return all rows of the file. Raises SettingsError with the line number for an invalid table."""
    return [_row(cells, line, str(path)) for line, cells in read_cells(path, COLUMNS)]


def parse_rows(lines: Iterable[str], where: str) -> list[PublishedRow]:
    """Return the rows of an open table. Raises SettingsError with `where` and the line."""
    return [_row(cells, line, where) for line, cells in parse_cells(lines, where, COLUMNS)]


def read_cells(path: Path, columns: Iterable[str]) -> list[tuple[int, Cells]]:
    """Return line number and cells of each row of a file. Raises SettingsError, as `parse_cells`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_cells(lines, str(path), columns)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def parse_cells(lines: Iterable[str], where: str, columns: Iterable[str]) -> list[tuple[int, Cells]]:
    """Return line number and cells of each row of an open table that has at least `columns`.

    Raises SettingsError with `where` and the line.
    """
    reader = csv.DictReader(lines, strict=True)
    found: list[tuple[int, Cells]] = []
    try:
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise SettingsError(f"{where}, line 1: the header has no column {', '.join(missing)}")
        for cells in reader:
            if None in cells or None in cells.values():
                raise SettingsError(f"{where}, line {reader.line_num}: the number of cells is not that of the header")
            found.append((reader.line_num, cells))
    except csv.Error as error:
        raise SettingsError(f"{where}, line {reader.reader.line_num}: {error}") from error
    if not found:
        raise SettingsError(f"{where} has a header and no rows")
    return found


def _row(cells: Cells, line: int, where: str) -> PublishedRow:
    at = f"{where}, line {line}"
    names = (*COLUMNS[len(TEXT) + len(LABELS) :], *LOAD_COUNTS, *LOAD_MEASURES)
    numbers = {name: _number(cells.get(name, ""), name, at) for name in names}
    measures = {*MEASURES, *LOAD_MEASURES}
    known = {name: value for name, value in numbers.items() if value is not None}
    for name in known.keys() - measures - {*LENGTHS}:
        if known[name] < 1 or known[name] != int(known[name]):
            raise SettingsError(f"{at}: {name} is {cells[name]}, must be a whole number of at least 1")
    return PublishedRow(
        line=line,
        texts={name: cells.get(name, "").strip() for name in (*TEXT, *LABELS, *OPTIONAL_LABELS)},
        counts={name: round(value) for name, value in known.items() if name not in measures and value >= 0.5},
        measures={name: value for name, value in known.items() if name in measures},
    )


def _number(text: str, name: str, at: str) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise SettingsError(f"{at}: {name} is {text!r}, not a number")
    return value


def data_hash(path: Path) -> str:
    """Return the SHA-256 of the file's bytes, hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
