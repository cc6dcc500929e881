"""Sections as Markdown: what unfolds and pictures are left out."""

from __future__ import annotations

from collections.abc import Sequence

from .document import Section, Table


def markdown(title: str, sections: Sequence[Section]) -> str:
    """Return the page's text."""
    return f"# {title}\n\n" + "\n".join(f"## {each.title}\n\n{body(each)}" for each in sections)


def body(section: Section) -> str:
    """Return a section's text without its heading."""
    parts = [f"{text}\n" for text in section.text]
    if section.items:
        parts.append("".join(f"- {item}\n" for item in section.items))
    if section.table is not None:
        parts.append(lines(section.table))
    return "\n".join(parts)


def lines(table: Table) -> str:
    """Return the lines of a table."""
    rows = [f"| {' | '.join(cells)} |\n" for cells in (table.head, *table.rows)]
    return "".join([rows[0], "|---" * len(table.head), "|\n", *rows[1:]])
