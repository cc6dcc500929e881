"""Modelled device time by the API key that asked for it. Whole nanoseconds, to the last one that the engine told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from server.link.messages import Tokens

NO_KEY = "none"  # the label where no key was asked for; otherwise a key's place among those that are set, from 1


class KeyAccount:
    """A sequence belongs to its key until the engine has told its end, also after the client was given the answer."""

    def __init__(self) -> None:
        self.device_ns: Counter[str] = Counter()
        self._keys: dict[str, str] = {}
        self._told: dict[str, int] = {}

    def open(self, request_ids: Iterable[str], key: str) -> None:
        """These sequences have been submitted by whoever holds `key`."""
        for request_id in request_ids:
            self._keys[request_id] = key

    def turn(self, tokens: Tokens) -> None:
        """Add what came to be known of each sequence in a turn of an engine."""
        for event, charge in tokens.charged():
            name, total_ns = event.request_id, charge.device_ns
            self.device_ns[self._keys.get(name, NO_KEY)] += total_ns - self._told.get(name, 0)
            if event.finish_reason is None:
                self._told[name] = total_ns
            else:
                self._told.pop(name, None)
                self._keys.pop(name, None)
