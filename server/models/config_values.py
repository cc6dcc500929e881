"""Values of a config.json as typed records: the type of a field says which values it may hold.

Any other value is a `ConfigError` that names the key, the limit and the value.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from ..typed_json import JsonError, complaint, convert

MAX_LAYERS = 1024
MAX_POSITIONS = 1 << 27

Layers = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Heads = Annotated[int, Meta(ge=1, le=1024)]
MIN_HEAD_DIM = 8  # the attention kernels encode a head in place, eight values at least
HeadDim = Annotated[int, Meta(ge=MIN_HEAD_DIM, le=1024)]
Width = Annotated[int, Meta(ge=1, le=1 << 20)]  # hidden and feed-forward sizes
Vocab = Annotated[int, Meta(ge=1, le=1 << 22)]
Positions = Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
Epsilon = Annotated[float, Meta(ge=0.0, le=1.0)]

Values = Mapping[str, Any]
DEFAULTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("defaults.json").read_text())  # by class
T = TypeVar("T", bound=msgspec.Struct)


class ConfigError(JsonError):
    """A configuration that cannot be served; the message begins with the key."""


@cache
def defaults_of(kind: type) -> Values:
    """Return the values of a record's missing keys that are not in its class: transformers' configuration has them."""
    return ChainMap(*(DEFAULTS.get(each.__name__, {}) for each in kind.__mro__))


def refuse(key: str, value: object, reason: str) -> ConfigError:
    """Return the error of a `key` whose `value` cannot be served for this `reason`."""
    return ConfigError(complaint(key, value, reason))


def read_record(values: Values, kind: type[T], path: str = "") -> T:
    """Return `values`, where they are missing the defaults, as a record of this `kind`; other keys are ignored.

    null counts as missing, unless the field's type has None. Messages begin with `path`, such as "rope_scaling.".
    Raises ConfigError.
    """
    hints = get_type_hints(kind)
    present = {key: value for key, value in values.items() if value is not None or NoneType in get_args(hints.get(key))}
    try:
        return convert({**defaults_of(kind), **present}, kind, path)
    except JsonError as error:
        raise ConfigError(str(error)) from None
