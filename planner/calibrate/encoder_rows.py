"""Reader of tables of published encoder measurements (CSV): the columns of the Neuron SDK's benchmark pages.

Cells stay text until a row is used, since these pages have rows with shifted columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .observation import Unusable
from .published import Cells, read_cells

TEXT = ("row_id", "instance", "model", "details", "task", "run_mode", "sdk", "table")
LOAD = ("cores", "n_models", "workers_per_model", "threads", "batch", "seq_len")
DECODER = ("tp", "input_len", "output_len")
MEASURES = ("throughput_per_s", "latency_p50_ms")
MONTH = "first_seen"  # column with the date of publication; a table may have none
COLUMNS = (*TEXT, *LOAD, *DECODER, *MEASURES)

_SDK = re.compile(r"(\d+)\.(\d+)")
_DETAILED_LENGTH = re.compile(r"sequence-length=(\d+)")


@dataclass(frozen=True, slots=True)
class EncoderMeasurement:
    """One row: cells by column. `line` is of the file, the header being 1."""

    line: int
    texts: dict[str, str]

    @property
    def row_id(self) -> str:
        return self.texts["row_id"] or f"line {self.line}"

    @property
    def part(self) -> str:
        """Name of the instance, as the catalogue spells it."""
        return self.texts["instance"].lower()

    @property
    def sdk(self) -> int:
        """Minor release of SDK 2.x; 0 before it."""
        found = _SDK.match(self.texts["sdk"])
        return int(found[2]) if found and int(found[1]) >= 2 else 0

    @property
    def source(self) -> str:
        """Name of the published table that the row is of, without its release."""
        return f"neuron-docs {self.part.split('.')[0]}"

    @property
    def model(self) -> str:
        """Name of the model with what distinguishes it."""
        return f"{self.texts['model']} {self.texts['details']}".strip()

    @property
    def length(self) -> int:
        """Tokens of a padded text. Raises Unusable when the row does not state them."""
        named = _DETAILED_LENGTH.search(self.texts["details"])
        return int(named[1]) if named and not self.texts["seq_len"] else self.count("seq_len")

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1, or `default` for an empty cell. Raises Unusable for anything else."""
        if default is not None and not self.texts[name]:
            return default
        value = self.number(name)
        if value < 1 or value != int(value):
            raise Unusable(f"{name} is {self.texts[name]}, not a whole number of at least 1")
        return int(value)

    def number(self, name: str) -> float:
        """Return a positive number. Raises Unusable for anything else."""
        try:
            value = float(self.texts[name] or "nan")
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            raise Unusable(f"{name} is {self.texts[name]!r}, not a positive number")
        return value


def read_encoder_rows(path: Path) -> list[EncoderMeasurement]:
    """Return all rows of the file. Raises SettingsError with the line number for an invalid table."""
    return [_row(line, cells) for line, cells in read_cells(path, COLUMNS)]


def _row(line: int, cells: Cells) -> EncoderMeasurement:
    texts = {name: cells[name].strip() for name in COLUMNS}
    return EncoderMeasurement(line, {**texts, "date": cells.get(MONTH, "").strip()})
