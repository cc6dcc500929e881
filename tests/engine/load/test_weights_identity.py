"""The identity of weights: equal files give equal identities, and the documented changes give other ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from neuronserve.server.checkpoint.manifest import MANIFEST
from neuronserve.server.checkpoint.tensor_files import INDEX, WEIGHTS
from neuronserve.server.engine.load.inventory import weights_identity
from neuronserve.server.link.messages import WeightsIdentity


def shard(path: Path, header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def header(dtype: str = "I8", size: int = 4) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": [size], "data_offsets": [0, size]}}


def test_a_checkpoint_is_told_by_names_sizes_and_headers_not_by_its_data(tmp_path: Path) -> None:
    shard(tmp_path / WEIGHTS, header(), b"abcd")
    first = weights_identity(tmp_path)
    assert first.of == "headers and sizes"
    shard(tmp_path / WEIGHTS, header(), b"efgh")
    assert weights_identity(tmp_path) == first
    shard(tmp_path / WEIGHTS, header("U8"), b"abcd")
    assert weights_identity(tmp_path) != first
    shard(tmp_path / WEIGHTS, header(size=5), b"abcde")
    assert weights_identity(tmp_path) != first


def test_a_sharded_checkpoint_is_told_by_its_index_and_all_its_shards(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        shard(tmp_path / name, header(), b"abcd")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}))
    first = weights_identity(tmp_path)
    shard(tmp_path / "b.safetensors", header(size=8), b"abcdefgh")
    second = weights_identity(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"v": "b.safetensors", "w": "a.safetensors"}}))
    assert len({first, second, weights_identity(tmp_path)}) == 3


def test_an_artifact_is_told_by_its_manifest(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(b"{}")
    assert weights_identity(tmp_path) == WeightsIdentity(hashlib.sha256(b"{}").hexdigest(), "manifest")
