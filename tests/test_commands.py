"""Subcommands from the outside: exit codes, tables, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.cli import main

SAMPLE = next((Path(__file__).parent / "planner").rglob("*.csv"))


def test_check_prints_groups_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert main(["calibrate", "--check", str(SAMPLE), "--json", str(out)]) == 0
    assert "decode_dense_inf2" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["is_fit"] is False
    group = report["groups"]["decode_dense_inf2"]
    assert group["n"] > 0
    assert 0 < group["median"] < 0.5


def test_a_table_that_is_none_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("row_id,platform\n1\n")
    assert main(["calibrate", "--check", str(bad)]) == 2
    assert str(bad) in capsys.readouterr().err


def test_data_or_check_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["calibrate"], ["calibrate", "--data", "a", "--check", "b"]):
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 2
    assert "--check" in capsys.readouterr().err


def test_bench_serve_is_the_load_test_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", "--help"])
    assert end.value.code == 0
    assert "loadtests" in capsys.readouterr().out


def test_unknown_flags_of_other_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "latency", "--nonsense"])
    assert end.value.code == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err
