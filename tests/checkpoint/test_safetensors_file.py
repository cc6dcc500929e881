"""Safetensors headers: the honest ones read as the reference implementation reads them, the lying ones refused."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from neuronserve.server.checkpoint.safetensors_file import MAX_HEADER_BYTES, VIEWS, SafetensorsFile
from neuronserve.server.errors import CheckpointError


def write(path: Path, header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    assert caught.value.file == str(path)
    return str(caught.value)


def test_reads_what_the_reference_implementation_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "bf16": rng.standard_normal(7).astype(ml_dtypes.bfloat16),
        "i8": np.arange(-4, 4, dtype=np.int8),
        "bool": np.array([True, False]),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.names) == set(tensors)
    for name, expected in tensors.items():
        got = file.array(name)
        assert got.shape == expected.shape == file.tensors[name].shape
        assert got.tobytes() == expected.tobytes()
    assert file.tensors["bf16"].dtype == "BF16"
    assert file.array("bf16").dtype == ml_dtypes.bfloat16
    assert file.array("f32").dtype == np.float32


def test_rows_are_read_alone(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    save_file({"first": np.ones(5, np.float32), "a": values}, tmp_path / "x")
    file = SafetensorsFile(tmp_path / "x")
    for begin, end in ((0, 4), (1, 3), (2, 2), (3, 4)):
        np.testing.assert_array_equal(file.rows("a", begin, end), values[begin:end])
    assert not any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path / "x", {"a": entry(0, 8, [2]), "b": entry(8, 16, [2])}, bytes(16)))
    os.truncate(tmp_path / "x", file.path.stat().st_size - 4)
    assert file.array("a").tolist() == [0.0, 0.0]
    for read in (lambda: file.array("b"), lambda: file.rows("b", 1, 2)):
        with pytest.raises(CheckpointError, match="tensor b: truncated: has become shorter"):
            read()


def test_a_file_that_is_no_longer_used_is_closed(tmp_path: Path) -> None:
    file = SafetensorsFile(write(tmp_path / "x", {"a": entry(0, 8, [2])}, bytes(8)))
    opened = os.listdir("/proc/self/fd")
    del file
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < len(opened)


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    values = np.arange(3, dtype=np.float32)
    header = json.dumps({"a": entry(0, 12, [3])}).encode()
    header += b" " * (1 - len(header) % 2)
    assert (8 + len(header)) % 4 != 0
    assert SafetensorsFile(write(tmp_path / "x", header, values.tobytes())).array("a").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("dtype", VIEWS)
def test_every_dtype_has_a_view_of_its_width(tmp_path: Path, dtype: str) -> None:
    width = np.dtype(VIEWS[dtype]).itemsize
    assert SafetensorsFile(write(tmp_path / "x", {"a": entry(0, 2 * width, [2], dtype)}, bytes(2 * width))).array(
        "a"
    ).shape == (2,)


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        (
            {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])},
            12,
            "tensor b: begins at byte 4, inside the tensor before it",
        ),
        ({"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, 20, "tensor b: begins at byte 12, leaving a hole"),
        ({"a": entry(4, 12, [2])}, 12, "leaving a hole before it"),
        ({"a": entry(0, 8, [2])}, 7, "tensor a: truncated: ends at byte 8 of the data, the file has 7"),
        ({"a": entry(0, 8, [2])}, 9, "1 bytes after the last tensor"),
        ({"a": entry(0, 8, [3])}, 8, "shape [3] of F32 takes 12 bytes, data_offsets [0, 8] differ"),
        ({"a": entry(8, 0, [2])}, 8, "shape [2] of F32 takes 8 bytes, data_offsets [8, 0] differ"),
        ({"a": entry(0, 8, [-2])}, 8, "a.shape[0] is -2: expected `int` >= 0"),
        ({"a": entry(-8, 0, [2])}, 8, "a.data_offsets[0] is -8: expected `int` >= 0"),
        ({"a": entry(0, 8, [2.0])}, 8, "a.shape[0] is 2.0: expected `int`"),
        ({"a": entry(0, 8, [True, 2])}, 8, "a.shape[0] is True: expected `int`"),
        ({"a": entry(0, 4, [1] * 9)}, 4, "a.shape is [1, 1, 1, 1, 1, 1, 1, 1, 1]: expected `array` of length <= 8"),
        ({"a": entry(0, 8, [2**62, 2**62])}, 8, "differ"),
        ({"a": entry(0, 2**62, [2**60])}, 8, "truncated"),
        ({"a": entry(0, 2**63, [2**61])}, 8, "a.data_offsets[1] is 9223372036854775808: expected"),
        ({"a": entry(0, 8, [2], "F3")}, 8, "a.dtype is 'F3': expected 'F64' or 'F32' or"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "a.data_offsets is missing"),
        ({"a": entry(0, 8, [2]) | {"c": 1}}, 8, "object contains unknown field `c`"),
        ({"a": entry(0, 8, [2]) | {"data_offsets": [0, 4, 8]}}, 8, "data_offsets is [0, 4, 8]: expected `array` of"),
        ({"b": entry(0, 8, [2]), "a.b": entry(8, 12, ["1"])}, 12, "a.b.shape[0] is '1': expected `int`"),
        ({"a": entry(0, 0, [10**400, 0])}, 0, "a.shape[0] is an integer of over 77 digits: expected"),
        ({"a": [1]}, 8, "a is [1]: expected `object`"),
        ({"a\x1b[31m": entry(0, 8, [2])}, 8, "has a tensor named 'a\\x1b[31m'"),
        ({"a" * 9999: entry(0, 8, [2])}, 8, "has a tensor named 'aaa"),
        (b'{"a":1,"a":2}', 0, "'a' appears twice"),
        (b"[]", 0, "expected `object`, got `array`"),
        (b"{", 0, "is not JSON"),
        (b"", 0, "is not JSON"),
        (b'{"a":' * 50_000, 0, "nested too deep"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path: Path, header: Any, data: int, named: str) -> None:
    assert named in refusal(write(tmp_path / "x", header, bytes(data)))


@pytest.mark.parametrize(
    ("length", "named"),
    [
        (1000, "truncated: header of 1000 bytes in a file of 10"),
        (MAX_HEADER_BYTES + 1, "over the 100000000 allowed"),
        (2**63, "over the 100000000 allowed"),
        (2**64 - 1, "over the 100000000 allowed"),
    ],
)
def test_header_lengths_beyond_the_file_are_refused(tmp_path: Path, length: int, named: str) -> None:
    assert named in refusal(write(tmp_path / "x", b"{}", length=length))


def test_files_too_short_and_missing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "short").write_bytes(b"1234567")
    assert "truncated: 0 bytes" in refusal(tmp_path / "empty")
    assert "truncated: 7 bytes" in refusal(tmp_path / "short")
    assert "no such file" in refusal(tmp_path / "none")
    assert "cannot be read: Is a directory" in refusal(tmp_path)


@given(cut=st.integers(0, 200), flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4))
def test_damaged_files_are_refused_or_stay_within_bounds(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    path = write(tmp_path_factory.mktemp("fuzz") / "x", {"a": entry(0, 8, [2]), "b": entry(8, 24, [2, 2])}, bytes(24))
    raw = bytearray(path.read_bytes())
    for position, value in flips:
        raw[position % len(raw)] = value
    path.write_bytes(raw[: len(raw) - cut] if cut < len(raw) else b"")
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    assert sum(file.array(name).nbytes for name in file.names) <= len(raw)
