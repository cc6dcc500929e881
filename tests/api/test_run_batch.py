"""`neuronserve run-batch`: a file answered without a server, with what it would have cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, run_command
from tests.api.test_batches import line_of, text_of


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_file_is_answered_as_a_server_would(checkpoint: Path, server: Server, tmp_path: Path) -> None:
    lines = [line_of(f"line {i}") for i in range(4)] + [line_of("text", "/v1/completions")]
    lines += [line_of("bad", temperature=9)]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    source.write_text("\N{BOM}" + source.read_text().replace("\n", "\r\n"))  # as programs of Windows write it
    before = {"id": "batch_req_1", "custom_id": "line 0", "response": None, "error": None}
    cut = json.dumps(before) + '\n{"custom_id": "line 1", "resp'  # by kill -9
    (tmp_path / "out.jsonl.part").write_text(cut)
    ended = run_command(
        "run-batch", str(checkpoint), "--served-model-name", "fake", "-i", str(source), "-o", str(target)
    )
    assert ended.returncode == 1, ended.stderr  # a line was refused
    answers = {line["custom_id"]: line for line in map(json.loads, target.read_text().splitlines())}
    assert answers.keys() == {line["custom_id"] for line in lines}
    assert answers["line 0"] == before
    for line in (lines[1], lines[4]):
        alone = httpx.post(server.url + line["url"], json=line["body"]).json()
        assert text_of(answers[line["custom_id"]]["response"]["body"]) == text_of(alone)
    assert answers["bad"]["response"]["status_code"] == 400
    assert re.search(r"answered +│ 4", ended.stdout), ended.stdout
    assert re.search(r"modelled price +│ \$0\.0000\d+", ended.stdout), ended.stdout
    assert "5/5" in ended.stderr


@pytest.mark.slow
def test_a_bad_file_is_refused_before_anything_is_loaded(checkpoint: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line_of("a"), line_of("a")])
    for path, complaint in (
        (source, "line 2: custom_id 'a' is that of line 1 too"),
        (tmp_path / "none", "cannot read"),
    ):
        ended = run_command("run-batch", str(checkpoint), "-i", str(path), "-o", str(tmp_path / "out"), "--port", "1")
        assert ended.returncode == 2
        assert complaint in ended.stderr
        assert "--port has no effect" in ended.stderr
        assert "loading" not in ended.stderr
