"""Headers of GGUF files: read as the package writes them, and refused, in bounded time, where they lie."""

from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.header import MAX_STRINGS, MAX_TENSORS, MAX_VALUES, is_gguf, read_header
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.errors import CheckpointError, StartError
from tests.checkpoint.gguf.made import finish, write_pair

STRING, ARRAY, U32, U64 = 8, 9, 4, 10


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def entry(name: str, dims: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0) -> bytes:
    """One row of the table of tensors; dimensions fastest first, as in a file."""
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def number(key: str, value: int, kind: int = U32) -> bytes:
    return text(key) + struct.pack("<II", kind, value)


def file(
    tensors: tuple[bytes, ...] = (entry("a"),),
    values: tuple[bytes, ...] = (),
    data: int = 32,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    head = magic + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    whole = head + b"".join(values) + b"".join(tensors)
    return whole + bytes(-len(whole) % 32) + bytes(data)


def refusal(tmp_path: Path, content: bytes) -> CheckpointError:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert time.process_time() - begin < 5
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert caught.value.file == str(path)
    return caught.value


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    values = {"a.u8": 7, "a.i64": -(1 << 40), "a.f": 0.5, "a.b": True, "a.s": "naïve"}
    writer.add_uint8("a.u8", 7)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float32("a.f", 0.5)
    writer.add_bool("a.b", True)
    writer.add_string("a.s", "naïve")
    writer.add_array("a.strings", ["x", "", "日本"])
    writer.add_array("a.floats", [1.5, -2.5])
    writer.add_array("a.bools", [True, False])
    writer.add_custom_alignment(64)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("rows", rows)
    writer.add_tensor("more", np.ones(5, np.float16))
    finish(writer)
    header = read_header(tmp_path / "m.gguf")
    assert {key: header.metadata[key] for key in values} == values
    assert header.metadata["a.strings"] == ["x", "", "日本"]
    assert np.array_equal(header.metadata["a.floats"], [1.5, -2.5])
    assert np.array_equal(header.metadata["a.bools"], [True, False])
    info = header.tensors["rows"]
    assert (info.type.name, info.shape, info.begin % 64) == ("F32", (3, 4), 0)
    content = (tmp_path / "m.gguf").read_bytes()
    assert content[info.begin : info.begin + info.num_bytes] == rows.tobytes()
    assert header.tensors["more"].num_bytes == 10


def test_version_2_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(file(version=2))
    assert read_header(tmp_path / "m.gguf").tensors["a"].shape == (8,)


def test_files_are_told_by_their_beginning_or_their_name(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(file())
    (tmp_path / "x.gguf").write_bytes(b"")
    (tmp_path / "config.json").write_bytes(b"{}")
    names = ("model", "x.gguf", "config.json", "missing.gguf")
    assert [is_gguf(tmp_path / name) for name in names] == [True, True, False, False]


HUGE = 1 << 60
BROKEN: list[tuple[str, bytes, str, str | None]] = [
    ("empty", b"", "truncated in the header", None),
    ("magic", file(magic=b"GGML"), "begins with b'GGML'", None),
    ("version", file(version=7), "is of version 7", None),
    ("big-endian", file(version=3 << 24), "is big-endian", None),
    ("many tensors", file(counts=(1 << 62, 0)), f"{MAX_TENSORS} are allowed", None),
    ("many values", file(counts=(0, 1 << 62)), f"{MAX_VALUES} are allowed", None),
    ("more tensors than there are", file(data=0, counts=(9, 0)), "truncated", None),
    ("long key", file(values=(struct.pack("<Q", HUGE),)), "truncated in metadata value 0", None),
    ("long string", file(values=(text("k") + struct.pack("<IQ", STRING, HUGE),)), "truncated in metadata k", None),
    (
        "array of 2^40",
        file(values=(text("k") + struct.pack("<IIQ", ARRAY, U64, 1 << 40),)),
        "truncated in metadata k",
        None,
    ),
    (
        "2^40 strings",
        file(values=(text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 40),)),
        f"over the {MAX_STRINGS} allowed",
        None,
    ),
    ("array of arrays", file(values=(text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1),)), "array of type 9", None),
    ("unknown type", file(values=(text("k") + struct.pack("<I", 77),)), "has type 77", None),
    ("not UTF-8", file(values=(text(b"\xff\xfe") + struct.pack("<II", U32, 1),)), "is not UTF-8", None),
    ("no printable key", file(values=(number("a\nb", 1),)), "has a metadata key named 'a\\nb'", None),
    ("key twice", file(values=(number("k", 1), number("k", 2))), "metadata key k appears twice", None),
    ("alignment 0", file(values=(number("general.alignment", 0),)), "general.alignment is 0", None),
    ("alignment 48", file(values=(number("general.alignment", 48),)), "general.alignment is 48", None),
    ("alignment 2^30", file(values=(number("general.alignment", 1 << 30),)), "must be a power of two", None),
    ("tensor twice", file((entry("a"), entry("a", offset=32)), data=64), "tensor a appears twice", None),
    ("no dimensions", file((entry("a", ()),)), "has 0 dimensions", "a"),
    ("many dimensions", file((entry("a", (1,) * 9),)), "has 9 dimensions", "a"),
    ("dimension 0", file((entry("a", (8, 0)),)), "none is 0", "a"),
    ("2^60 rows", file((entry("a", (8, HUGE)),)), "takes 36893488147419103232 bytes", "a"),
    ("2^240 values", file((entry("a", (HUGE,) * 4),)), "takes", "a"),
    ("product that wraps", file((entry("a", (1 << 32, 1 << 32)),)), "takes", "a"),
    ("half a block", file((entry("a", (31,), 8),)), "a multiple of 32", "a"),
    ("type 99", file((entry("a", (8,), 99),)), "has type 99", "a"),
    ("past the end", file((entry("a", offset=64),)), "truncated: ends at byte", "a"),
    ("offset 2^63", file((entry("a", offset=1 << 63),)), "truncated: ends at byte", "a"),
    ("misaligned", file((entry("a", offset=4),), data=64), "no multiple of the alignment 32", "a"),
    ("overlap", file((entry("a", (16,)), entry("b", offset=32)), data=64), "inside of tensor a", "b"),
    ("cut", file(data=31), "truncated: ends at byte", "a"),
]


@pytest.mark.parametrize(("content", "message", "tensor"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken_headers_are_refused_with_tensor_and_reason(
    tmp_path: Path, content: bytes, message: str, tensor: str | None
) -> None:
    error = refusal(tmp_path, content)
    assert message in error.reason
    assert error.tensor == tensor


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_header(tmp_path / "m.gguf")


@dataclass(frozen=True)
class Whole:
    """A file that can be served."""

    root: Path
    content: bytes = field(repr=False)
    header_bytes: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole")
    path = write_pair("tiny-llama", root)
    return Whole(root, path.read_bytes(), read_header(path).num_bytes)


def outcome(root: Path, content: bytes) -> None:
    """Can be opened with all that the model needs, or is refused: nothing else."""
    (root / "broken.gguf").write_bytes(content)
    with contextlib.suppress(StartError):
        open_model(gguf_directory(root / "broken.gguf", root / "cache"), RequestedFormats("float32"), 1)


@given(st.data())
def test_changed_bytes_of_a_header_are_refused_or_harmless(whole: Whole, data: st.DataObject) -> None:
    changed = bytearray(whole.content)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, whole.header_bytes - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        changed[at : at + len(piece)] = piece
    outcome(whole.root, bytes(changed))


@given(st.integers(0, 9999))
def test_files_that_were_cut_are_refused(whole: Whole, share: int) -> None:
    root, content = whole.root, whole.content
    (root / "cut.gguf").write_bytes(content[: (len(content) - 33) * share // 10_000])
    with pytest.raises(CheckpointError, match=r"truncated|begins with|the file has"):
        gguf_directory(root / "cut.gguf", root / "cache")


@given(st.binary(max_size=300), st.sampled_from([bytes, lambda rest: b"GGUF\x03\0\0\0" + rest]))
def test_any_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, begin: Callable[[bytes], bytes]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(begin(content))
    with contextlib.suppress(CheckpointError):
        read_header(path)
