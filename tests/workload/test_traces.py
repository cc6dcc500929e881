"""Trace readers: each format read to the nanosecond, and every malformed line refused with its number."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.errors import SettingsError
from neuronserve.workload.traces import _date_ns, read_trace
from neuronserve.workload.workload import Workload

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
PLAIN = "timestamp,input,output\n"


def read(folder: Path, text: str, **options: Any) -> Workload:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, **options)


def columns(workload: Workload) -> tuple[list[int], list[int], list[int]]:
    return workload.arrival_ns.tolist(), workload.input_len.tolist(), workload.output_len.tolist()


def test_azure_times_keep_all_seven_digits(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:59:59.9999999,374,44\n2023-11-16 19:00:00.0000001,396,109\n"
    assert columns(read(tmp_path, text)) == ([0, 200], [374, 396], [44, 109])


def test_burstgpt_leaves_out_what_its_format_calls_failed(tmp_path: Path) -> None:
    text = BURST + "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,9,0,9,API log\n46,GPT-4,9,3,12,API log\n"
    assert columns(read(tmp_path, text)) == ([0, 41 * 10**9], [472, 9], [18, 3])


def test_plain_columns_may_stand_in_any_order_and_case(tmp_path: Path) -> None:
    text = "\ufeffOutput, input ,user,TIMESTAMP\r\n3,10,bob,0.25\r\n\r\n4,20,ann,1e3\r\n"
    assert columns(read(tmp_path, text)) == ([0, 999_750_000_000], [10, 20], [3, 4])


def test_mooncake_keeps_its_hash_ids(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 27000, "input_length": 1000, "output_length": 2, "hash_ids": [0, 1]},
        {"timestamp": 27500, "input_length": 600, "output_length": 1, "hash_ids": [0, 7]},
    ]
    workload = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert columns(workload) == ([0, 500_000_000], [1000, 600], [2, 1])
    assert (workload.prefixes, workload.prefix_block) == (((0, 1), (0, 7)), 512)


def test_other_formats_share_no_prefix(tmp_path: Path) -> None:
    assert read(tmp_path, PLAIN + "0,1,1\n").prefixes is None


GOOD = '{"timestamp": 9, "input_length": 5, "output_length": 2, "hash_ids": [0]}\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (AZURE + "2023-11-16 18:15:46.68,374\n", 2, "2 cells where the header has 3"),
        (AZURE + "2023-11-16 18:15:46.68,374,44\n2023-13-16 18:15:46.68,3,4\n", 3, "month"),
        (AZURE + "2023-11-16 18:15:46.68x,374,44\n", 2, "Invalid isoformat"),
        (PLAIN + "0,5,5\n\n0,x,5\n", 4, "invalid literal"),
        (PLAIN + "0,5,0\n", 2, "output is 0"),
        (PLAIN + "0,-5,1\n", 2, "input is -5"),
        (PLAIN + "0,99999999999,1\n", 2, "input is 99999999999"),
        (PLAIN + "nan,5,1\n", 2, "timestamp is nan"),
        (PLAIN + "inf,5,1\n", 2, "timestamp is inf"),
        (PLAIN + "1e300,5,1\n", 2, "out of range"),
        (PLAIN + "5,1,1\n4.5,1,1\n", 3, "arrives 0.5 s before the line above"),
        (BURST + "5,ChatGPT,0,18,490,Conversation log\n", 2, "input is 0"),
        (BURST + "5,ChatGPT,4,-1,490,Conversation log\n", 2, "output is -1"),
        (GOOD + "{\n", 2, "Expecting"),
        (GOOD + "[]\n", 2, "expected `object`, got `array`"),
        (GOOD + '{"timestamp": 10}\n', 2, "input_length is missing"),
        (GOOD + GOOD.replace("9", "8"), 2, "before the line above"),
        (GOOD + GOOD.replace("9", '"x"'), 2, "timestamp is 'x': expected `float`"),
        (GOOD + GOOD.replace("9", "null"), 2, "float"),
        (GOOD + GOOD.replace("9", "true"), 2, "timestamp is True: expected `float`"),
        (GOOD.replace("[0]", "[0, 1]"), 1, "2 hash_ids"),
        (GOOD.replace("[0]", '["a"]'), 1, r"hash_ids\[0\] is 'a': expected `int`"),
        (GOOD.replace("[0]", "[0, -1]"), 1, r"hash_ids\[1\] is -1: expected `int` >= 0"),
        (GOOD.replace("5", "5.5"), 1, "input_length is 5.5"),
        ('{"timestamp": ' + "[" * 100_000, 1, "nested too deep"),
        ("a,b,c\n1,2,3\n", 1, "neither a Mooncake JSON line nor a header"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as refusal:
        read(tmp_path, text)
    assert f"trace:{line}:" in str(refusal.value)


def test_a_named_format_asks_for_its_columns(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="trace:1: the header has no column 'contexttokens'"):
        read(tmp_path, PLAIN + "0,1,1\n", format="azure")


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    for text in (AZURE, PLAIN):
        with pytest.raises(SettingsError, match="holds no request"):
            read(tmp_path, text)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the trace .*absent"):
        read_trace(tmp_path / "absent")
    binary = tmp_path / "binary"
    binary.write_bytes(b"timestamp,input,output\n0,1,\xff\n")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        read_trace(binary)


@given(st.datetimes(), st.integers(0, 999_999_999))
def test_dates_keep_nanoseconds(moment: Any, nanos: int) -> None:
    whole = moment.replace(microsecond=0)
    text = f"{whole:%Y-%m-%d %H:%M:%S}".rjust(19, "0")
    assert _date_ns(f"{text}.{nanos:09d}") - _date_ns(text) == nanos


@given(st.text(max_size=200))
def test_any_text_is_a_workload_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "trace"
    path.write_text(PLAIN + text, encoding="utf-8", errors="replace", newline="")
    with suppress(SettingsError):
        assert len(read_trace(path)) > 0
