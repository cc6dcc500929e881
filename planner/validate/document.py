"""A page of sections, as data: text, tables, tables to unfold, and a picture. html.py and markdown.py write it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of plain text; the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """A line that unfolds to a table, or to further lines."""

    summary: str
    table: Table | None = None
    folds: tuple[Fold, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it, in this order."""

    title: str
    text: tuple[str, ...] = ()
    items: tuple[str, ...] = ()  # of a list
    table: Table | None = None
    folds: tuple[Fold, ...] = ()
    svg: str = ""
