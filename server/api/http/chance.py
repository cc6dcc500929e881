"""Random parts of an answer, and its time. A router gives both, so that another replica writes the same answer."""

from __future__ import annotations

import secrets
import time
import uuid
from contextvars import ContextVar
from random import Random


class Chance:
    """Random numbers that follow from a key, in the order in which an answer needs them."""

    def __init__(self, key: str, created: int) -> None:
        self.created = created
        self._random = Random(key)

    def bits(self, count: int) -> int:
        """Return a random number of `count` bits."""
        return self._random.getrandbits(count)


CHANCE: ContextVar[Chance | None] = ContextVar("chance", default=None)


def hex_digits() -> str:
    """Return 32 random digits, for an id."""
    given = CHANCE.get()
    return uuid.uuid4().hex if given is None else f"{given.bits(128):032x}"


def seed() -> int:
    """Return a seed of 63 bits."""
    given = CHANCE.get()
    return secrets.randbits(63) if given is None else given.bits(63)


def unix_time() -> int:
    """Return the time at which an answer was begun."""
    given = CHANCE.get()
    return int(time.time()) if given is None else given.created
