"""Settings of a server's API keys."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ..api.keys.key import SCOPES, Key, KeysConfig, Scope, digest_of
from ..errors import SettingsError
from .base import File, Settings, Texts

CLIENTS: frozenset[Scope] = frozenset({"inference", "metrics"})
OPERATORS: frozenset[Scope] = frozenset({"admin"})


def _not_empty(keys: Any) -> Any:
    if keys == "":  # as a variable of a secret without a value; other lists take it for no item
        raise ValueError("must be a key: an empty one would let everybody in")
    return keys


class KeySettings(Settings):
    """API keys, and the paths that need none."""

    api_key: Annotated[Texts, BeforeValidator(_not_empty)] = Field(
        (), description="key that clients must send; repeatable"
    )
    api_key_file: File = Field(
        None, description="file of such keys, one a line (a flag is visible in lists of processes)"
    )
    admin_api_key: Annotated[Texts, BeforeValidator(_not_empty)] = Field(
        (), description="key of operators: opens /admin and everything else; repeatable"
    )
    api_keys_file: File = Field(
        None, description="YAML or JSON file of keys with names, scopes and limits; reloaded when it changes"
    )
    public_paths: Texts = Field(
        (), description="path that needs no key, such as /metrics; with / at its end all paths below; repeatable"
    )

    @property
    def keys_config(self) -> KeysConfig:
        """Return the keys of flags, variables and --api-key-file, numbered from 1, and the path of the keys file.

        Without operators' keys a client's key opens /admin too. Raises SettingsError for a file without a key.
        """
        has_operators = self.admin_api_key or self.api_keys_file is not None
        scopes = CLIENTS if has_operators else SCOPES
        given = [(key, scopes) for key in dict.fromkeys((*self.api_key, *self._keys_of_file()))]
        given += [(key, OPERATORS) for key in dict.fromkeys(self.admin_api_key)]
        fixed = tuple(Key(str(i), digest_of(key), opened) for i, (key, opened) in enumerate(given, 1))
        return KeysConfig(fixed, self.api_keys_file, self.public_paths)

    def _keys_of_file(self) -> tuple[str, ...]:
        """Read --api-key-file. Raises SettingsError if it is missing or has no key, which would let everybody in."""
        if self.api_key_file is None:
            return ()
        try:
            lines = self.api_key_file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--api-key-file: cannot read {str(self.api_key_file)!r}: {error}") from error
        if keys := tuple(line.strip() for line in lines if line.strip()):
            return keys
        raise SettingsError(f"--api-key-file: {self.api_key_file} has no key: that would let everybody in")
