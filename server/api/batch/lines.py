"""Lines of a batch's input: the rules for each, and the check of a whole file. It reads files and runs nothing."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

MAX_ERRORS = 100  # reported for one file
MAX_CUSTOM_ID = 512


class _Line(msgspec.Struct):
    custom_id: str = msgspec.field()
    url: str = msgspec.field()
    body: msgspec.Raw = msgspec.field()
    method: Literal["POST"] = "POST"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch; `number` counts from 1, blank lines included."""

    number: int
    custom_id: str
    url: str
    body: bytes  # JSON


@dataclass(frozen=True, slots=True)
class LineError:
    """One error of a file, as OpenAI lists them."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class LineRules:
    """Rules for every line of one batch."""

    urls: Collection[str]
    max_bytes: int  # in a line
    max_lines: int | None = None

    def parse(self, number: int, data: bytes) -> BatchLine | LineError:
        """Return the request in one line, or its error."""
        if len(data) > self.max_bytes:
            message = f"It has {len(data)} bytes; --max-body-bytes is {self.max_bytes}."
            return LineError("line_too_long", message, number)
        try:
            line = msgspec.json.decode(data.removeprefix(BOM_UTF8), type=_Line)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at `$.")
            return LineError("invalid_request", f"{problem}.", number, place.removesuffix("`") or None)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return LineError("invalid_json_line", f"It is not JSON: {error}.", number)
        if not 1 <= len(line.custom_id) <= MAX_CUSTOM_ID:
            message = f"custom_id must have from 1 to {MAX_CUSTOM_ID} characters."
            return LineError("invalid_custom_id", message, number, "custom_id")
        if line.url not in self.urls:
            message = f"url is {line.url[:80]!r}; it must be {' or '.join(sorted(self.urls))}."
            return LineError("invalid_url", message, number, "url")
        return BatchLine(number, line.custom_id, line.url, bytes(line.body))


@dataclass(slots=True)
class CheckedFile:
    """Number of requests in a file, and its errors."""

    total: int = 0
    errors: list[LineError] = field(default_factory=list)


def check_file(path: Path, rules: LineRules) -> CheckedFile:
    """Check every line. A batch runs only if its file has no errors."""
    checked, seen = CheckedFile(), dict[str, int]()
    for number, data in numbered_lines(path):
        if checked.total == rules.max_lines:
            checked.errors.append(
                LineError("too_many_tasks", f"The file has more than {rules.max_lines} lines.", number)
            )
        if len(checked.errors) >= MAX_ERRORS or checked.total == rules.max_lines:
            break
        checked.total += 1
        line = rules.parse(number, data)
        if isinstance(line, BatchLine) and (before := seen.setdefault(line.custom_id, number)) != number:
            message = f"custom_id {line.custom_id[:80]!r} is that of line {before} too."
            line = LineError("duplicate_custom_id", message, number, "custom_id")
        if isinstance(line, LineError):
            checked.errors.append(line)
    if not checked.total:
        checked.errors.append(LineError("empty_file", "The file has no lines."))
    return checked


def read_requests(path: Path, rules: LineRules) -> Iterator[BatchLine]:
    """Yield the requests of a file that has been checked."""
    for number, data in numbered_lines(path):
        line = rules.parse(number, data)
        assert isinstance(line, BatchLine), line
        yield line


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if data.strip():
                yield number, data
