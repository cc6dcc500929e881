"""A cassette: recorded answers of an OpenAI endpoint as JSON lines, found by their request. No network IO here.

A recording is a request and its whole answer. Only the headers `KEPT` of the answer are stored. Secrets of the
request's headers are masked wherever they occur.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...server.errors import StartError
from ...server.host.private_file import open_private
from ...server.typed_json import JsonError, convert, parse, shown

VERSION = 1
KEPT = ("content-type", "content-encoding", "retry-after", "retry-after-ms", "x-should-retry")
SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
MIN_SECRET_CHARS = 8  # a shorter key, such as "none", may be an ordinary word
MAX_COMPARED = 20_000  # characters of a body that the search for the nearest one compares


class CassetteError(StartError):
    """The file is no cassette, or cannot be read or written."""


class Head(msgspec.Struct, frozen=True):
    """The first line."""

    neuronserve_cassette: int
    upstream: str


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request. `body` is a JSON value if it was JSON, else text."""

    method: str
    path: str  # without a query, which may hold a key
    body: Any = None

    @property
    def canonical(self) -> str:
        """The body as one text that does not depend on the order of keys."""
        return json.dumps(self.body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


class Recording(msgspec.Struct, frozen=True):
    """One line: a request and its answer."""

    request: RecordedRequest
    status: int
    headers: dict[str, str]
    body: str
    chunks: tuple[tuple[float, int], ...]  # seconds after the request, and bytes of the body up to then
    encoding: Literal["utf-8", "base64"] = "utf-8"

    @property
    def data(self) -> bytes:
        """The body as received."""
        return self.body.encode() if self.encoding == "utf-8" else base64.b64decode(self.body)

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """Yield the chunks of the body, each with its time in seconds after the request."""
        data, begin = self.data, 0
        for seconds, end in self.chunks:
            yield seconds, data[begin:end]
            begin = end


def recorded_request(method: str, path: str, body: bytes, headers: Mapping[str, str]) -> RecordedRequest:
    """Return the request as it is stored and compared; `headers` have lower-case names."""
    text = masked(body, headers).decode("utf-8", "backslashreplace")
    try:
        return RecordedRequest(method, path, parse(text) if text else None)
    except JsonError:
        return RecordedRequest(method, path, text)


def recording(
    request: RecordedRequest, status: int, headers: Mapping[str, str], body: bytes, chunks: Sequence[tuple[float, int]]
) -> Recording:
    """Return an answer as it is stored. Secrets in `body` must be masked already."""
    kept = {name: headers[name] for name in KEPT if name in headers}
    times = tuple((round(seconds, 6), end) for seconds, end in chunks)
    try:
        return Recording(request, status, kept, body.decode(), times)
    except UnicodeDecodeError:
        return Recording(request, status, kept, base64.b64encode(body).decode(), times, "base64")


def masked(data: bytes, headers: Mapping[str, str]) -> bytes:
    """Return `data` with each secret of a request's headers replaced by as many asterisks."""
    for name in SECRET_HEADERS:
        for secret in {headers.get(name, ""), headers.get(name, "").rpartition(" ")[2]}:
            if len(secret) >= MIN_SECRET_CHARS:
                data = data.replace(secret.encode("latin-1"), b"*" * len(secret))
    return data


class CassetteWriter:
    """Appends recordings to a file, one line each."""

    def __init__(self, path: Path, upstream: str, is_appending: bool) -> None:
        """Open the file. Raises CassetteError if it exists without `is_appending`, or cannot be written."""
        if path.exists() and not is_appending:
            raise CassetteError(f"{path} exists: --append adds to it")
        try:
            is_new = not path.exists() or path.stat().st_size == 0
            if not is_new:
                read(path)
            self._file = open_private(path, "ab")
        except OSError as error:
            raise CassetteError(f"cannot write {str(path)!r}: {error.strerror}") from error
        if is_new:
            self._write(Head(VERSION, upstream))

    def add(self, recording: Recording) -> None:
        """Append a recording. Raises OSError if the disk is full."""
        self._write(recording)

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[Recording]:
    """Return the recordings of a file, in order. Raises CassetteError with the line."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CassetteError(f"cannot read {str(path)!r}: {error}") from error
    number, found = 1, []
    try:
        head = convert(parse(lines[0] if lines else ""), Head)
        if head.neuronserve_cassette != VERSION:
            raise CassetteError(f"{path}: a cassette of version {head.neuronserve_cassette}; this reads {VERSION}")
        for line in lines[1:]:
            number += 1
            found.append(convert(parse(line), Recording))
    except JsonError as error:
        raise CassetteError(f"{path}: line {number} is no line of a cassette: {error}") from error
    return found


class Cassette:
    """Recordings by request. A request with several recordings gets them in order, then always the last."""

    def __init__(self, recordings: Iterable[Recording]) -> None:
        self._all = list(recordings)
        self._by_request: dict[tuple[str, str, str], list[Recording]] = {}
        for each in self._all:
            self._by_request.setdefault(_key(each.request), []).append(each)
        self._num_given: dict[tuple[str, str, str], int] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def model(self) -> str:
        """The first requested model."""
        bodies = (each.request.body for each in self._all)
        return next((str(body["model"]) for body in bodies if isinstance(body, dict) and "model" in body), "")

    def take(self, request: RecordedRequest) -> Recording | None:
        """Return the next answer to a request; None if it was never recorded."""
        found = self._by_request.get(key := _key(request))
        if found is None:
            return None
        number = self._num_given.get(key, 0)
        self._num_given[key] = number + 1
        return found[min(number, len(found) - 1)]

    def nearest(self, request: RecordedRequest) -> str:
        """Return which recording is most like an unknown request, and the first difference, as text."""
        near = [(place, each.request) for place, each in enumerate(self._all, 1) if each.request.path == request.path]
        if not near:
            paths = sorted({f"{each.request.method} {each.request.path}" for each in self._all})
            return f"recorded are {', '.join(paths)}" if paths else "nothing is recorded"
        body = request.canonical[:MAX_COMPARED]
        matcher = SequenceMatcher(b=body, autojunk=False)

        def likeness(item: tuple[int, RecordedRequest]) -> float:
            matcher.set_seq1(item[1].canonical[:MAX_COMPARED])
            return matcher.quick_ratio() + (item[1].method == request.method)

        place, found = max(near, key=likeness)
        if found.method != request.method:
            return f"recording {place} is {found.method}"
        return f"nearest is recording {place}, in which {difference(found.body, request.body)}"


def difference(recorded: Any, now: Any, path: str = "") -> str:
    """Return the first difference of two JSON values, as text."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for name in [*recorded, *(name for name in now if name not in recorded)]:
            if name not in now or name not in recorded:
                side = "is missing now" if name in recorded else "was not recorded"
                return f"{path}{name} {side}"
            if recorded[name] != now[name]:
                return difference(recorded[name], now[name], f"{path}{name}.")
    if isinstance(recorded, list) and isinstance(now, list):
        for place, (one, other) in enumerate(zip(recorded, now, strict=False)):
            if one != other:
                return difference(one, other, f"{path.removesuffix('.')}[{place}].")
        return f"{path.removesuffix('.')} has {len(recorded)} items, not {len(now)}"
    return f"{path.removesuffix('.') or 'the body'} is {shown(recorded)}, not {shown(now)}"


def _key(request: RecordedRequest) -> tuple[str, str, str]:
    return request.method, request.path, request.canonical
