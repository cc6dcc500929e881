"""JSON for files that are kept and compared: a line for each value below some depth, numbers of few digits."""

from __future__ import annotations

import json
from typing import Any


def compact(value: Any, depth: int, digits: int = 17) -> str:
    """Return JSON with line breaks in the outer `depth` levels only, and numbers of at most `digits` digits.

    Raises ValueError for a number that is not finite.
    """
    return _text(_rounded(value, digits), depth, 1) + "\n"


def _text(value: Any, depth: int, indent: int) -> str:
    if depth == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    if isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {_text(each, depth - 1, indent + 1)}" for name, each in value.items()]
    else:
        parts = [_text(each, depth - 1, indent + 1) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    inner = f",\n{' ' * indent}".join(parts)
    return f"{begin}\n{' ' * indent}{inner}\n{' ' * (indent - 1)}{end}"


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
