"""End tokens and default sampling parameters, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.errors import CheckpointError
from server.text.tokenizer import Tokenizer, read_json


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values for fields that a request leaves out. None = the checkpoint has none either."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


# (field, lowest, highest, may it equal the lowest)
_RANGES = (
    ("temperature", 0.0, 2.0, True),
    ("top_p", 0.0, 1.0, False),
    ("top_k", -1, 2**31 - 1, True),
    ("min_p", 0.0, 1.0, True),
    ("repetition_penalty", 0.0, 100.0, False),
    ("max_new_tokens", 1, 2**31 - 1, True),
)


def load_generation_defaults(directory: Path, tokenizer: Tokenizer) -> GenerationDefaults:
    """Read generation_config.json and config.json. Raises CheckpointError when a value cannot be used."""
    name = "generation_config.json"
    config = read_json(directory / name)
    values = {field: _number(name, config, field) for field, *_ in _RANGES}
    if values["top_k"] == -1:
        values["top_k"] = 0
    eos = _ids(name, config) + _ids("config.json", read_json(directory / "config.json"))
    if tokenizer.eos_token_id is not None:
        eos.append(tokenizer.eos_token_id)
    return GenerationDefaults(eos_token_ids=tuple(dict.fromkeys(eos)), **values)


def _ids(file: str, config: dict[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise CheckpointError(file, f"eos_token_id must be a token id or a list of them, not {str(value)[:80]}")
    return ids


def _number(file: str, config: dict[str, Any], field: str) -> Any:
    """The field's value when it is there and in range, for every field of `_RANGES`."""
    value = config.get(field)
    if value is None:
        return None
    _, low, high, may_equal = next(row for row in _RANGES if row[0] == field)
    is_whole = isinstance(low, int)
    is_number = isinstance(value, int if is_whole else int | float) and not isinstance(value, bool)
    if not is_number or not (low <= value <= high) or (value == low and not may_equal):
        least = "from" if may_equal else "above"
        raise CheckpointError(file, f"{field} is {str(value)[:80]!r}, but must be {least} {low} up to {high}")
    return value if is_whole else float(value)
