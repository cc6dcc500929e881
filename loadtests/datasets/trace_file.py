"""What the trace readers share: reading a file with good complaints, and refusing one that is out of order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from loadtests.errors import DatasetError


class TraceFile:
    """Lines of a data file. `fail` raises DatasetError with the file and the line."""

    def __init__(self, path: str | None, dataset: str) -> None:
        if path is None:
            raise DatasetError(f"dataset {dataset} reads a file: give dataset_path")
        self.path = path
        self._line = 0
        self._last: float | None = None

    def lines(self) -> Iterator[str]:
        """Lines that are not empty."""
        try:
            with Path(self.path).open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    self._line = number
                    if line.strip():
                        yield line
        except OSError as error:
            raise DatasetError(f"{self.path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.path}: line {self._line + 1} is not UTF-8") from error

    def fail(self, reason: str) -> NoReturn:
        raise DatasetError(f"{self.path}: line {self._line}: {reason}")

    def require_order(self, timestamp_s: float) -> None:
        """Timestamps must never go back."""
        if self._last is not None and timestamp_s < self._last:
            self.fail(
                f"out of order: its timestamp is {self._last - timestamp_s:.6f} s before that of the line above; "
                "sort the file by timestamp"
            )
        self._last = timestamp_s

    def require_any(self, count: int) -> None:
        if not count:
            raise DatasetError(f"{self.path}: holds no request")
