"""Lengthens the file in which llama.cpp's server saves a slot: a context that was never computed.

The cells of a saved slot are repeated, each at a position of its own. Attention over them takes as long as over a
computed context; the generated text is meaningless. The layout is that of `llama_state_seq_save_file` in llama.h,
little endian. Other contents (cells with coordinates, caches with windows, transposed values) are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from benchmarks.records import BenchmarkError

_MAGIC = 0x67677371
_HEADER = struct.Struct("<III")  # magic, version, number of tokens
_COUNTS = struct.Struct("<II")  # before the cells: streams, cells; after them: is transposed, layers
_CELL = struct.Struct("<iIi")  # position, number of sequences, the sequence
_TENSOR = struct.Struct("<iQ")  # type, bytes of a cell


def lengthen(saved: Path, longer: Path, tokens: Sequence[int]) -> None:
    """Write a slot that holds `tokens` to `longer`, made of the cells of a saved slot. Raises BenchmarkError."""
    with saved.open("rb") as source, longer.open("wb") as target:
        magic, version, num_words = _read(_HEADER, source)
        if magic != _MAGIC:
            raise BenchmarkError(f"llama.cpp's slot begins with {magic:#x}, not {_MAGIC:#x}")
        source.seek(4 * num_words, 1)
        target.write(_HEADER.pack(magic, version, len(tokens)) + struct.pack(f"<{len(tokens)}i", *tokens))
        num_cells = _cells(source, target, len(tokens))
        _tensors(source, target, num_cells, len(tokens))
        if source.read(1):
            raise BenchmarkError("llama.cpp's slot has more than keys and values of one cache")


def _cells(source: IO[bytes], target: IO[bytes], wanted: int) -> int:
    """Write the positions of the cells; returns how many were saved."""
    streams, num_cells = _read(_COUNTS, source)
    cells = [_read(_CELL, source) for _ in range(num_cells)]
    if not cells or streams != 1 or any(cell != (at, 1, cells[0][2]) for at, cell in enumerate(cells)):
        raise BenchmarkError("cells of llama.cpp's slot are not at positions from 0 on, each of one sequence")
    target.write(_COUNTS.pack(streams, wanted))
    target.write(b"".join(_CELL.pack(at, 1, cells[0][2]) for at in range(wanted)))
    return num_cells


def _tensors(source: IO[bytes], target: IO[bytes], num_cells: int, wanted: int) -> None:
    transposed, layers = _read(_COUNTS, source)
    if transposed:
        raise BenchmarkError("llama.cpp's slot has transposed values: it was kept without flash attention")
    target.write(_COUNTS.pack(transposed, layers))
    for _ in range(2 * layers):  # keys of every layer, then values
        kind, row = _read(_TENSOR, source)
        rows = source.read(row * num_cells)
        if len(rows) != row * num_cells:
            raise BenchmarkError("llama.cpp's slot ends within its keys and values")
        target.write(_TENSOR.pack(kind, row))
        for first in range(0, wanted, num_cells):
            target.write(rows[: row * min(num_cells, wanted - first)])


def _read(layout: struct.Struct, source: IO[bytes]) -> tuple[int, ...]:
    data = source.read(layout.size)
    if len(data) != layout.size:
        raise BenchmarkError("llama.cpp's slot ends before its keys and values")
    return layout.unpack(data)
