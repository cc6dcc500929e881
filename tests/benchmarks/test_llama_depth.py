"""A slot of llama.cpp's server made longer, and a server that restores it and answers behind it."""

from __future__ import annotations

import struct
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.llama_depth import LlamaDepth
from benchmarks.llama_slot import lengthen
from benchmarks.records import DEPTH_DECODE_TOKENS, BenchmarkError, Case

ROWS = {"keys 0": b"abcdefghi", "keys 1": b"jklmno", "values 0": b"pqr", "values 1": b"stu"}  # of three cells


def slot(*, positions: tuple[int, ...] = (0, 1, 2), transposed: int = 0, magic: int = 0x67677371) -> bytes:
    """A slot of three tokens and two layers."""
    data = struct.pack("<III3i", magic, 3, 3, 7, 8, 9) + struct.pack("<II", 1, len(positions))
    data += b"".join(struct.pack("<iIi", at, 1, 0) for at in positions) + struct.pack("<II", transposed, 2)
    for kind, rows in enumerate(ROWS.values()):
        data += struct.pack("<iQ", kind, len(rows) // 3) + rows
    return data


@pytest.mark.parametrize("wanted", [1, 3, 8, 9])
def test_cells_are_repeated_each_at_its_own_position(tmp_path: Path, wanted: int) -> None:
    saved, longer = tmp_path / "saved", tmp_path / "longer"
    saved.write_bytes(slot())
    lengthen(saved, longer, [7 + at % 3 for at in range(wanted)])
    data = longer.read_bytes()
    assert struct.unpack_from("<III", data) == (0x67677371, 3, wanted)
    assert struct.unpack_from(f"<{wanted}i", data, 12) == tuple(7 + at % 3 for at in range(wanted))
    at = 12 + 4 * wanted
    assert struct.unpack_from("<II", data, at) == (1, wanted)
    cells = [struct.unpack_from("<iIi", data, at + 8 + 12 * cell) for cell in range(wanted)]
    assert cells == [(position, 1, 0) for position in range(wanted)]
    at += 8 + 12 * wanted
    assert struct.unpack_from("<II", data, at) == (0, 2)
    at += 8
    for kind, rows in enumerate(ROWS.values()):
        row = len(rows) // 3
        assert struct.unpack_from("<iQ", data, at) == (kind, row)
        assert data[at + 12 : at + 12 + row * wanted] == (rows * 3)[: row * wanted]
        at += 12 + row * wanted
    assert at == len(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (slot(magic=0x12345678), "begins with 0x12345678"),
        (slot(positions=(0, 2, 3)), "not at positions from 0"),
        (slot(positions=()), "not at positions from 0"),
        (slot(transposed=1), "without flash attention"),
        (slot()[:-2], "ends within its keys"),
        (slot()[:40], "ends before its keys"),
        (slot() + b"x", "more than keys and values"),
    ],
)
def test_a_slot_of_another_layout_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "saved").write_bytes(data)
    with pytest.raises(BenchmarkError, match=words):
        lengthen(tmp_path / "saved", tmp_path / "longer", [7] * 8)


# Keeps one slot as llama.cpp's server does: what a prompt shares with it is not computed again.
SERVER = f"#!{sys.executable}\nSAVED = {slot()!r}\n" + textwrap.dedent("""
    import http.server, json, struct, sys
    of = lambda flag: sys.argv[sys.argv.index(flag) + 1]
    assert of("-ctk") == of("-ctv") == "q8_0" and of("-fa") == "on" and of("-np") == "1"
    held = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer({})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/completion":
                shared = next((i for i, (a, b) in enumerate(zip(held, body["prompt"])) if a != b), len(held))
                held[:] = body["prompt"]
                assert len(held) + body["n_predict"] <= int(of("-c"))
                computed, made = len(held) - shared, body["n_predict"]
                times = {"prompt_n": computed, "prompt_ms": 10 * computed, "predicted_n": made}
                self.answer({"timings": times | {"predicted_ms": 500 * (made - 1)}})
            elif self.path.endswith("save"):
                open(of("--slot-save-path") + body["filename"], "wb").write(SAVED)
                self.answer({})
            else:
                data = open(of("--slot-save-path") + body["filename"], "rb").read()
                held[:] = struct.unpack_from(f"<{struct.unpack_from('<III', data)[2]}i", data, 12)
                self.answer({})

        def answer(self, body):
            data = json.dumps(body).encode()
            self.send_response(ANSWER)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    http.server.HTTPServer((of("--host"), int(of("--port"))), Handler).serve_forever()
""")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "m.gguf").touch()
    return tmp_path / "m.gguf"


def program(folder: Path, text: str) -> Path:
    path = folder / "llama-server"
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def contender(tmp_path: Path, model: Path) -> Iterator[LlamaDepth]:
    made = LlamaDepth(program(tmp_path, SERVER.replace("ANSWER", "200")), model, 2, "q8_0", 4096)
    made.start()
    yield made
    made.stop()


def test_a_prompt_and_tokens_are_measured_behind_contexts_that_are_restored(contender: LlamaDepth) -> None:
    expected = {"prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 2.0}
    for seed, size in enumerate((1000, 1000, 4096)):
        assert contender.measure(Case("depth", size), seed) == expected
    assert contender.about() == {"threads": "2", "model": "m.gguf", "cache": "q8_0"}


def test_a_server_that_computes_what_its_slot_holds_is_not_measured(contender: LlamaDepth) -> None:
    contender.measure(Case("depth", 1000), 0)
    with pytest.raises(BenchmarkError, match=f"computed 0 and {DEPTH_DECODE_TOKENS + 1} tokens"):
        contender.measure(Case("depth", 1000), 0)  # the same prompt again


def test_what_the_server_refuses_is_said_and_it_is_ended(tmp_path: Path, model: Path) -> None:
    text = SERVER.replace("ANSWER", "200 if self.command == 'GET' else 501")
    refusing = LlamaDepth(program(tmp_path, text), model, 2, "q8_0", 64)
    refusing.start()
    try:
        with pytest.raises(BenchmarkError, match="/completion: 501"):
            refusing.measure(Case("depth", 64), 0)
    finally:
        refusing.stop()
    assert not [child for child in psutil.Process().children() if "llama-server" in " ".join(child.cmdline())]


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"none\.gguf"):
        LlamaDepth(tmp_path / "llama-server", tmp_path / "none.gguf", 2, "q8_0", 64).start()
