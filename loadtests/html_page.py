"""Elements of a report page that loads nothing: style, tiles, tables and sections."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

STYLE = (Path(__file__).resolve().parent / "report.css").read_text(encoding="utf-8")


def page(title: str, lead: str, body: Sequence[str]) -> str:
    """Return the whole document."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f'<body><main><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(body)}</main></body></html>\n'
    )


def alert(text: str) -> str:
    return f'<p class="alert">{escape(text)}</p>'


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def tiles(items: Sequence[tuple[str, str, str]]) -> str:
    """Return tiles of (what, figure, remark)."""
    cells = "".join(
        f'<div class="tile"><span>{escape(what)}</span><b>{escape(figure)}</b><small>{escape(remark)}</small></div>'
        for what, figure, remark in items
    )
    return f'<div class="tiles">{cells}</div>'


def cards(items: Sequence[tuple[str, str]]) -> str:
    """Return cards of (title, HTML of a chart)."""
    cells = "".join(f'<div class="card"><h3>{escape(title)}</h3>{inner}</div>' for title, inner in items)
    return f'<div class="cards">{cells}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is text and the others are figures."""
    top = "".join(f"<th{' class=n' if i else ''}>{escape(cell)}</th>" for i, cell in enumerate(head))
    lines = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i else ''}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="card wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def facts(items: dict[str, Any]) -> str:
    """Return a list of names and values; None is shown as a dash."""
    pairs = "".join(
        f"<dt>{escape(key.replace('_', ' '))}</dt><dd>{escape(fact(value))}</dd>" for key, value in items.items()
    )
    return f'<div class="card"><dl>{pairs}</dl></div>'


def fact(value: Any) -> str:
    """Return a value of a record as text for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {fact(inner)}" for key, inner in value.items() if inner is not None)
    if isinstance(value, list):
        return ", ".join(map(fact, value))
    return str(value)
