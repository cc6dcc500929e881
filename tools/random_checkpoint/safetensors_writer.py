"""Write safetensors files tensor by tensor, whole or sharded, with at most one chunk of values in memory.

(The safetensors package needs all tensors in memory at once.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

Shapes = dict[str, tuple[int, ...]]
Chunks = Callable[[str], Iterable[npt.NDArray[Any]]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Contents of a checkpoint: the tensors in order, and their common dtype."""

    shapes: Shapes
    dtype: str  # in safetensors' spelling
    item_bytes: int

    def num_bytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * self.item_bytes

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes(name) for name in self.shapes)


def write_safetensors(directory: Path, layout: Layout, shards: list[list[str]], chunks: Chunks) -> Iterator[int]:
    """Write model.safetensors, or one file a shard and their index; yields the bytes written after each tensor.

    `shards` are the names in each file, as `split` returns them; `chunks(name)` yields a tensor as flat arrays, in
    order.
    """
    files = [_shard_name(i, len(shards)) for i in range(len(shards))]
    done = 0
    for file, names in zip(files, shards, strict=True):
        with (directory / file).open("wb") as out:
            out.write(_header(layout, names))
            for name in names:
                for chunk in chunks(name):
                    out.write(chunk.data)
                done += layout.num_bytes(name)
                yield done
    if len(shards) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": layout.total_bytes}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def split(layout: Layout, num_shards: int) -> list[list[str]]:
    """Return names in order, cut into `num_shards` runs of about equal bytes, none empty.

    Raises ValueError if there are fewer tensors than that.
    """
    if not 1 <= num_shards <= len(layout.shapes):
        raise ValueError(f"{len(layout.shapes)} tensors cannot be spread over {num_shards} files")
    shards: list[list[str]] = [[]]
    done, left = 0, len(layout.shapes)
    for name in layout.shapes:
        is_full = done * num_shards >= layout.total_bytes * len(shards) or left <= num_shards - len(shards)
        if shards[-1] and len(shards) < num_shards and is_full:
            shards.append([])
        shards[-1].append(name)
        done += layout.num_bytes(name)
        left -= 1
    return shards


def _shard_name(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def _header(layout: Layout, names: list[str]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name in names:
        end = begin + layout.num_bytes(name)
        entries[name] = {"dtype": layout.dtype, "shape": list(layout.shapes[name]), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data
    return len(text).to_bytes(8, "little") + text
