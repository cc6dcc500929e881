"""Values of a config.json as typed records: what a field may hold is its type, and what it may not is refused by name.

Every complaint is a `ConfigError` that names the key, the limit and the value. Opens no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

MAX_SHOWN = 80  # characters of an offending value that a message repeats
MAX_LAYERS = 1024
MAX_POSITIONS = 1 << 27

Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Heads = Annotated[int, Meta(ge=1, le=1024)]
HeadDim = Annotated[int, Meta(ge=2, le=1024)]
Width = Annotated[int, Meta(ge=1, le=1 << 20)]  # hidden and feed-forward sizes
Vocab = Annotated[int, Meta(ge=1, le=1 << 22)]
Positions = Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
Epsilon = Annotated[float, Meta(ge=0.0, le=1.0)]

Values = Mapping[str, Any]
T = TypeVar("T", bound=msgspec.Struct)


class ConfigError(ValueError):
    """A configuration that cannot be served; the message begins with the key."""


def shown(value: object) -> str:
    """`value` as a message may repeat it: short, whatever was in the file."""
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "an integer of over 77 digits"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def refuse(key: str, value: object, reason: str) -> ConfigError:
    """The error of a `key` whose `value` cannot be served for this `reason`."""
    return ConfigError(f"{key} is {shown(value)}: {reason}")


def read_record(values: Values, kind: type[T], path: str = "") -> T:
    """`values` as a record of this `kind`; keys that it does not name are left alone.

    null counts as missing, unless the field's type has None. `path` is put before keys in messages, such as
    "rope_scaling.". Raises ConfigError.
    """
    hints = get_type_hints(kind)
    present = {key: value for key, value in values.items() if value is not None or NoneType in get_args(hints.get(key))}
    for key in hints.keys() & present.keys():
        _require_moderate(f"{path}{key}", present[key])
    try:
        return msgspec.convert(present, kind)
    except msgspec.ValidationError as error:
        raise _config_error(str(error), present, path) from None


def _require_moderate(key: str, value: object) -> None:
    """Refuses numbers that no 64-bit type holds, which a conversion would trip over."""
    if isinstance(value, int) and value.bit_length() > 63:
        raise refuse(key, value, "no such number is possible here")
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(key, value, "must be finite")


def _config_error(message: str, values: Values, path: str) -> ConfigError:
    """msgspec's complaint with the key first and the value behind it."""
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        return ConfigError(f"{path}{missing.group(1)} is missing")
    problem, _, place = message.partition(" - at `$.")
    key = re.split(r"[.\[`]", place)[0]
    problem = problem.partition(", got")[0].replace("Expected", "expected")
    return refuse(f"{path}{key}", values.get(key), problem)
