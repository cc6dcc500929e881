"""Sections as one HTML file that loads nothing and needs no script. It follows the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .document import Fold, Section, Table

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #222; --faint: #ddd; --shade: #eee; --line: #999 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16191c; --ink: #ddd; --faint: #3a3f44; --shade: #23282d; --line: #888 }
}
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em;
  background: var(--paper); color: var(--ink) }
table { border-collapse: collapse; margin: .5em 0; font-size: 13px; font-variant-numeric: tabular-nums }
td, th { padding: .2em .6em; text-align: right; border-bottom: 1px solid var(--faint) } td { white-space: nowrap }
td:first-child, th:first-child { text-align: left }
details { margin: .2em 0 } details details { margin-left: 1.2em } summary { cursor: pointer }
.wide { overflow-x: auto } svg { max-width: 100%; height: auto }
"""


def html(title: str, sections: Sequence[Section]) -> str:
    """Return the page's text."""
    parts = "\n".join(_section(each) for each in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f'<meta name="viewport" content="width=device-width"/><title>{escape(title)}</title><style>{_STYLE}</style>'
        f"</head>\n<body><h1>{escape(title)}</h1>\n{parts}\n</body></html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", *(f"<p>{escape(text)}</p>" for text in section.text)]
    if section.items:
        parts.append(f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in section.items)}</ul>")
    parts.append(section.svg)
    if section.table is not None:
        parts.append(_table(section.table))
    return "\n".join(filter(None, (*parts, *(_fold(each) for each in section.folds))))


def _fold(fold: Fold) -> str:
    inner = "" if fold.table is None else _table(fold.table)
    inner += "".join(_fold(each) for each in fold.folds)
    return f"<details><summary>{escape(fold.summary)}</summary>{inner}</details>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in table.rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>'
