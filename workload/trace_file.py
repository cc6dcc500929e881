"""A file of requests in any format, read line by line. Every refusal names the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..server.clock import NS
from ..server.errors import SettingsError
from .workload import MAX_TOKENS


class TraceFile:
    """Lines of a text file, and refusals of wrong lines. All methods raise SettingsError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last_ns: int | None = None

    def lines(self) -> Iterator[str]:
        """Yield all lines with their ends, without a byte order mark."""
        try:
            # newline="" leaves line ends to csv
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                yield from file
        except OSError as error:
            raise SettingsError(f"cannot read the trace {self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SettingsError(f"{self.path} is not UTF-8 text: {error.reason} at byte {error.start}") from error

    def table(self, lines: Iterable[str], columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the line number and the cells of `columns` for each row of a CSV table with a header."""
        rows = csv.reader(lines)
        try:
            header = header_names(next(rows, []))
            missing = [name for name in columns if name not in header]
            if missing:
                raise self.refusal(1, f"the header has no column {missing[0]!r}")
            for row in filter(None, rows):
                if len(row) != len(header):
                    raise self.refusal(rows.line_num, f"{len(row)} cells where the header has {len(header)} columns")
                yield rows.line_num, [row[header.index(name)].strip() for name in columns]
        except csv.Error as error:
            raise self.refusal(rows.line_num, error) from error

    def refusal(self, line: int, reason: object) -> SettingsError:
        """Return the error to raise for line number `line`."""
        return SettingsError(f"{self.path}:{line}: {reason}")

    @contextmanager
    def refusing(self, line: int) -> Iterator[None]:
        """Turn a parser's error inside the block into a refusal of line number `line`."""
        try:
            yield
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise self.refusal(line, error) from error

    def require_order(self, line: int, time_ns: int) -> None:
        """Require that arrivals never go back in time."""
        if self._last_ns is not None and time_ns < self._last_ns:
            raise self.refusal(line, f"arrives {(self._last_ns - time_ns) / NS:g} s before the line above it")
        self._last_ns = time_ns

    def require_any(self, count: int) -> None:
        """Require at least one request."""
        if not count:
            raise SettingsError(f"{self.path}: the trace holds no request")


def header_names(cells: list[str]) -> list[str]:
    """Return the names of columns in lower case."""
    return [cell.strip().strip('"').lower() for cell in cells]


def require_tokens(name: str, value: int) -> int:
    """Return `value`, a number of tokens. Raises ValueError when it is out of range."""
    if not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of 1 to {MAX_TOKENS} tokens")
    return value
