"""Tables that fit a terminal: they show the most important columns for which there is room. Figures as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10
from textwrap import fill
from typing import Generic, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

Row = TypeVar("Row")
GAPS = (2, 1)  # between columns: as wide as leaves room for the first ranks


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column. If there is no room for all, columns of a lower rank are kept."""

    head: str  # at most two lines
    cell: Callable[[Row], str]
    rank: int = 0
    is_text: bool = False

    def width(self, rows: Sequence[Row]) -> int:
        """Return the characters of the widest cell."""
        return max(len(text) for text in (*self.head.split("\n"), *map(self.cell, rows)))


def fitting(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> tuple[list[Column[Row]], int]:
    """Return the columns that fit into `width` characters, in their order, and the gap between them."""
    chosen: list[Column[Row]] = []
    gap = GAPS[-1]
    for gap in GAPS:
        chosen, left = [], width + 1  # no gap behind the last
        for column in sorted(columns, key=lambda each: each.rank):
            needed = column.width(rows) + gap
            if needed <= left:
                chosen.append(column)
                left -= needed
        if all(column in chosen for column in columns if column.rank == 0):
            break
    return [column for column in columns if column in chosen], gap


def table_of(title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> Table:
    """Return a table of at most `width` characters in which no cell is cut."""
    chosen, gap = fitting(columns, rows, width)
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap - 1, 0, 0), title_justify="left")
    for column in chosen:
        table.add_column(Text(column.head), justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in chosen))
    return table


def prose(text: str, width: int) -> Text:
    """Break text into lines of at most `width` characters. Longer words, such as addresses, stay whole.

    Print the result uncropped.
    """
    return Text(fill(text, width, break_long_words=False, break_on_hyphens=False), no_wrap=True, overflow="ignore")


def figure(value: float | None) -> str:
    """Return a number with at least three digits and without an exponent."""
    if value is None:
        return "unknown"
    if value >= 99.95 or not value:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - floor(log10(value)))}f}"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return figure(seconds * 1e3)


def band(low_s: float | None, high_s: float | None) -> str:
    """Return P10 and P90 in milliseconds: `51-104`, or `51+` if the upper end has no bound."""
    if low_s is None:
        return "unbounded"
    return f"{milliseconds(low_s)}+" if high_s is None else f"{milliseconds(low_s)}-{milliseconds(high_s)}"


def dollars(usd: float | None) -> str:
    """Return an amount to the cent."""
    return "unknown" if usd is None else f"{usd:.2f}"
