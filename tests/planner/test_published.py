"""Tables of published rows: values, and refusals with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.planner.calibrate.published import COLUMNS, PublishedRow, parse_rows, read_rows
from neuronserve.server.cost.work import CURRENT_SDK
from neuronserve.server.errors import SettingsError

HEADER = ",".join(COLUMNS)


def table(**cells: str) -> list[str]:
    return [HEADER + "\n", ",".join(cells.get(name, "") for name in COLUMNS) + "\n"]


def only(**cells: str) -> PublishedRow:
    (row,) = parse_rows(table(**cells), "t.csv")
    return row


def test_empty_cells_are_not_stated() -> None:
    row = only(row_id="7", tp="8.0", tpot_ms="9.5", model=" Llama ")
    assert (row.row_id, row.counts, row.measures) == ("7", {"tp": 8}, {"tpot_ms": 9.5})
    assert row.texts["model"] == "Llama"
    assert only().row_id == "line 2"


@pytest.mark.parametrize(
    ("text", "minor"),
    [("2.18.1", 18), ("2.15?", 15), ("2.21.x/2.22", 21), ("not stated (2.19/2.20)", 19), ("", CURRENT_SDK)],
)
def test_the_release_is_read_where_one_is_named(text: str, minor: int) -> None:
    assert only(neuron_sdk=text).sdk == minor


def test_only_the_notes_say_that_the_host_samples() -> None:
    names = ",".join((*COLUMNS, "notes"))
    cells = "," * len(COLUMNS)
    (row,) = parse_rows([names, cells + '"on SDK 2.26, CPU sampling"'], "t.csv")
    assert row.samples_on_host
    assert not only().samples_on_host


def test_mean_lengths_are_rounded_and_no_length_is_not_stated() -> None:
    assert only(input_len="1499.6", output_len="0").counts == {"input_len": 1500}


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "bom.csv").write_text("\ufeff" + "".join(table(tp="8")), encoding="utf-8")
    assert read_rows(tmp_path / "bom.csv")[0].counts == {"tp": 8}


def test_other_columns_and_their_order_do_not_matter() -> None:
    names = ["extra", *reversed(COLUMNS)]
    cells = ["x" if n == "extra" else "4" if n == "tp" else "" for n in names]
    assert parse_rows([",".join(names), ",".join(cells)], "t.csv")[0].counts == {"tp": 4}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "line 1: the header has no column row_id"),
        (["model,tp\n"], "line 1: the header has no column row_id"),
        ([HEADER + "\n"], "has a header and no rows"),
        ([HEADER + "\n", "1,2\n"], "line 2: the number of cells"),
        ([*table(), *table(tp="8")[1:], "," * len(COLUMNS) + "\n"], "line 4: the number of cells"),
        (table(tpot_ms="fast"), "line 2: tpot_ms is 'fast', not a number"),
        (table(tpot_ms="nan"), "line 2: tpot_ms is 'nan', not a number"),
        (table(ttft_ms="inf"), "line 2: ttft_ms is 'inf', not a number"),
        (table(tp="0"), "line 2: tp is 0, must be a whole number of at least 1"),
        (table(batch_size="-4"), "line 2: batch_size is -4"),
        (table(n_layers="1.5"), "line 2: n_layers is 1.5"),
        ([HEADER + "\n", '"open' + "," * (len(COLUMNS) - 1)], "line 2: unexpected end of data"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_its_line(lines: list[str], reason: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse_rows(lines, "t.csv")
    assert "t.csv" in str(refused.value)
    assert reason in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*none\.csv"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + b"\n\xe9\n")
    with pytest.raises(SettingsError, match=r"latin\.csv is not UTF-8 text"):
        read_rows(tmp_path / "latin.csv")
