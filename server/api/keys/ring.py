"""Keys in force: identification of callers, and reloads of the key file. Knows no paths and no HTTP.

Usage belongs to a key's name: it continues when the key behind the name, its limits or the file change.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass, field

from ...clock import MonotonicClock
from ...errors import SettingsError
from .file import NO_KEY, read_keys, require_distinct
from .key import Key, KeysConfig
from .use import Accounts, KeyUse

log = logging.getLogger("neuronserve.keys")


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request: `name` owns the objects that it stores."""

    name: str
    use: KeyUse
    is_admin: bool = False  # sees objects of other callers
    key: Key | None = field(default=None, repr=False)

    @property
    def sees(self) -> str | None:
        """Owner of the stored objects that the caller sees; None = all owners."""
        return None if self.is_admin else self.name

    @property
    def tenant(self) -> str:
        """Tenant whose turn the caller's requests wait for; "" on a server without keys, which has one queue."""
        return "" if self.key is None else self.name

    def priority(self, requested: int | None) -> int:
        """Return the priority of a request that asks for one: no better than the key's."""
        best = self.key.priority if self.key is not None else None
        return (requested or 0) if best is None else max(best, best if requested is None else requested)


def anyone() -> Caller:
    """Return the caller of every request on a server without keys."""
    return Caller(NO_KEY, KeyUse(NO_KEY, MonotonicClock()), is_admin=True)


class KeyRing:
    """Keys in force. Used on one event loop."""

    def __init__(self, config: KeysConfig, accounts: Accounts) -> None:
        """Raises SettingsError when the key file is wrong."""
        self._config, self._accounts = config, accounts
        self._callers: list[Caller] = []
        self._set(self._read())
        # Whether clients need a key; with operators' flags alone only operators' paths need one. Never changes.
        self.asks_clients = config.file is not None or any("inference" in key.scopes for key in config.fixed)
        self.anyone = Caller(NO_KEY, accounts.of(NO_KEY), is_admin=not self.asks_clients)

    @property
    def has_keys(self) -> bool:
        """Whether the server has keys at all; this never changes."""
        return bool(self._callers)

    @property
    def has_operators(self) -> bool:
        """Whether operators have keys that clients do not have."""
        kinds = {each.is_admin for each in self._callers}
        return True in kinds and (False in kinds or not self.asks_clients)

    def find(self, given: bytes | None) -> Caller | None:
        """Return the sender of a key; None for an unknown key. Takes constant time: every key is compared."""
        digest = hashlib.sha256(given or b"").digest()
        matches = [hmac.compare_digest(digest, each.key.digest) for each in self._callers if each.key is not None]
        return self._callers[matches.index(True)] if given is not None and any(matches) else None

    def named(self, name: str) -> Caller:
        """Return the owner of stored objects by name, without limits, even if its key is gone."""
        found = self._named(name)
        if found is None:
            return Caller(name, self._accounts.of(name).unlimited, self.anyone.is_admin)
        return Caller(name, found.use.unlimited, found.is_admin, found.key)

    def reload(self) -> None:
        """Read the file again; log a wrong file and keep the old keys."""
        try:
            keys = self._read()
        except SettingsError as error:
            log.error("API keys stay as they are: %s", error)
            return
        before = {each.name for each in self._callers}
        self._set(keys)
        now = {each.name for each in self._callers}
        log.info("%d API keys are in force: %d new, %d gone", len(now), len(now - before), len(before - now))

    def _read(self) -> tuple[Key, ...]:
        config = self._config
        keys = (*config.fixed, *(read_keys(config.file) if config.file is not None else ()))
        require_distinct((f"the key {key.name!r}", key) for key in keys)
        return keys

    def _set(self, keys: tuple[Key, ...]) -> None:
        callers = []
        for key in keys:
            use = self._accounts.of(key.name)
            use.limit(key.limits)
            callers.append(Caller(key.name, use, "admin" in key.scopes, key))
        self._callers = callers

    def _named(self, name: str) -> Caller | None:
        return next((each for each in self._callers if each.name == name), None)
