"""Readers of recorded workloads: Azure LLM inference CSV, Mooncake JSONL, BurstGPT CSV, and plain CSV.

A line that cannot be read, or is earlier than the line above it, is refused with its number. Nothing is skipped or
repaired, except BurstGPT's failed calls, which its format logs with 0 response tokens.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from ..server.clock import NS
from ..server.typed_json import decode
from .trace_file import TraceFile, header_names, require_tokens
from .workload import MAX_SECONDS, MAX_TOKENS, Workload

TraceFormat = Literal["azure", "mooncake", "burstgpt", "csv"]
MOONCAKE_BLOCK = 512  # tokens of one hash id (kvcache-ai/Mooncake, README of the traces)

NumTokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]

# Column names of each CSV format: time, input tokens, output tokens. Lower case.
_COLUMNS: dict[TraceFormat, tuple[str, str, str]] = {
    "azure": ("timestamp", "contexttokens", "generatedtokens"),
    "burstgpt": ("timestamp", "request tokens", "response tokens"),
    "csv": ("timestamp", "input", "output"),
}


class _MooncakeRequest(msgspec.Struct):
    """One line of a Mooncake trace."""

    timestamp: float  # milliseconds
    input_length: NumTokens
    output_length: NumTokens
    hash_ids: tuple[Annotated[int, Meta(ge=0, le=MAX_TOKENS)], ...] = ()  # of blocks of the input


class _Line(NamedTuple):
    time_ns: int
    input_len: int
    output_len: int
    prefix: tuple[int, ...] = ()


def read_trace(path: Path, format: TraceFormat | None = None, max_requests: int | None = None) -> Workload:
    """Read the requests of a trace, or the first ones. The first arrival is time 0.

    Without `format`, the first line decides it. Raises SettingsError, with the line number, for a line that lacks the
    format, and for arrivals out of order.
    """
    file = TraceFile(path)
    lines = file.lines()
    first = next(lines, "")
    found = format or _detect(file, first)
    every = chain([first], lines)
    requests = _mooncake(file, every) if found == "mooncake" else _table(file, every, found)
    return _workload(file, islice(requests, max_requests), found)


def _detect(file: TraceFile, first: str) -> TraceFormat:
    if first.lstrip().startswith("{"):
        return "mooncake"
    columns = header_names(first.split(","))
    for format_, names in _COLUMNS.items():
        if set(names) <= set(columns):
            return format_
    forms = "; ".join(f"{format_}: {', '.join(names)}" for format_, names in _COLUMNS.items())
    raise file.refusal(1, f"neither a Mooncake JSON line nor a header with the columns of one of {forms}")


def _workload(file: TraceFile, lines: Iterator[tuple[int, _Line]], format_: TraceFormat) -> Workload:
    times, inputs, outputs = array("q"), array("q"), array("q")
    prefixes: list[tuple[int, ...]] = []
    for number, line in lines:
        file.require_order(number, line.time_ns)
        times.append(line.time_ns)
        inputs.append(line.input_len)
        outputs.append(line.output_len)
        if format_ == "mooncake":
            prefixes.append(line.prefix)
    file.require_any(len(times))
    arrival = np.array(times, dtype=np.int64)
    return Workload(
        name=f"{file.path.name} ({format_})",
        arrival_ns=arrival - arrival[0],
        input_len=np.array(inputs, dtype=np.int64),
        output_len=np.array(outputs, dtype=np.int64),
        prefixes=tuple(prefixes) if format_ == "mooncake" else None,
        prefix_block=MOONCAKE_BLOCK,
    )


def _table(file: TraceFile, lines: Iterator[str], format_: TraceFormat) -> Iterator[tuple[int, _Line]]:
    for number, (time, num_input, num_output) in file.table(lines, _COLUMNS[format_]):
        if format_ == "burstgpt" and num_output == "0":
            continue  # a failed call, by the format's own definition
        with file.refusing(number):
            time_ns = _date_ns(time) if "-" in time[1:] and ":" in time else seconds_ns(time)
            line = _Line(time_ns, require_tokens("input", int(num_input)), require_tokens("output", int(num_output)))
        yield number, line


def _mooncake(file: TraceFile, lines: Iterator[str]) -> Iterator[tuple[int, _Line]]:
    for number, text in enumerate(lines, 1):
        if text.strip():
            with file.refusing(number):
                line = _mooncake_line(text)
            yield number, line


def _mooncake_line(text: str) -> _Line:
    request = decode(text, _MooncakeRequest)
    time_ns, num_input = seconds_ns(request.timestamp, unit_s=1e-3), request.input_length
    if len(request.hash_ids) > -(-num_input // MOONCAKE_BLOCK):
        num_ids = len(request.hash_ids)
        raise ValueError(f"{num_ids} hash_ids of {MOONCAKE_BLOCK} tokens are more than input_length {num_input}")
    return _Line(time_ns, num_input, request.output_length, request.hash_ids)


def seconds_ns(value: str | float, unit_s: float = 1.0) -> int:
    """Return the nanoseconds of a timestamp in units of `unit_s`. Raises ValueError for an invalid one."""
    seconds = float(value) * unit_s
    if not (math.isfinite(seconds) and abs(seconds) < 4 * MAX_SECONDS):
        raise ValueError(f"the timestamp is {value}, which is out of range")
    return round(seconds * NS)


def _date_ns(text: str) -> int:
    """Return nanoseconds since 1970. Azure writes seven digits after the second, one more than `datetime` keeps."""
    whole, _, fraction = text.partition(".")
    digits = fraction.rstrip("Z")
    if digits and not digits.isdecimal():  # such as an offset from UTC
        return round(datetime.fromisoformat(text).timestamp() * 1e6) * 1000
    moment = datetime.fromisoformat(whole.rstrip("Z")).replace(tzinfo=UTC)
    return int(moment.timestamp()) * NS + int(digits.ljust(9, "0")[:9] or 0)
