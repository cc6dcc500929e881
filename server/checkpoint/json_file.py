"""JSON files of a checkpoint as typed records. A bad value is a `CheckpointError` that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ..errors import CheckpointError
from ..typed_json import JsonError, read

T = TypeVar("T")


def read_json(path: Path, max_bytes: int, record: type[T]) -> T:
    """Read the file at `path`, of at most `max_bytes` bytes, as a `record`. Raises CheckpointError."""
    with refusals_of(path):
        return read(path, max_bytes, record)


@contextmanager
def refusals_of(file: Path) -> Iterator[None]:
    """Turn a JsonError raised inside into a CheckpointError of the `file`."""
    try:
        yield
    except JsonError as error:
        raise CheckpointError(str(file), str(error)) from None
