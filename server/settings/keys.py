"""Settings of a server's API keys."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neuronserve.server.api.keys.key import SCOPES, Key, KeysConfig, Scope, digest_of
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.base import File, Settings, Texts

CLIENTS: frozenset[Scope] = frozenset({"inference", "metrics"})
OPERATORS: frozenset[Scope] = frozenset({"admin"})


def _not_empty(keys: Any) -> Any:
    if keys == "":  # as a variable of a secret without a value; other lists take it for no item
        raise ValueError("must be a key: an empty one would let everybody in")
    return keys


class KeySettings(Settings):
    """Who may call, and what they may use."""

    api_key: Annotated[Texts, BeforeValidator(_not_empty)] = Field(
        (), description="key that clients must send; may be repeated"
    )
    api_key_file: File = Field(None, description="file with such keys, one a line, which no list of processes shows")
    admin_api_key: Annotated[Texts, BeforeValidator(_not_empty)] = Field(
        (), description="key that /admin asks for instead, and that opens everything else; may be repeated"
    )
    api_keys_file: File = Field(
        None, description="YAML or JSON file of keys with names, scopes and limits; read again when it changes"
    )
    public_paths: Texts = Field(
        (), description="path that asks for no key, such as /metrics; with / at its end all below; may be repeated"
    )

    @property
    def keys_config(self) -> KeysConfig:
        """The keys of flags, variables and --api-key-file by their places, from 1, and the file of the others.

        Without keys for operators those of clients are also theirs. Raises SettingsError for a file without a key.
        """
        has_operators = self.admin_api_key or self.api_keys_file is not None
        scopes = CLIENTS if has_operators else SCOPES
        given = [(key, scopes) for key in dict.fromkeys((*self.api_key, *self._keys_of_file()))]
        given += [(key, OPERATORS) for key in dict.fromkeys(self.admin_api_key)]
        fixed = tuple(Key(str(i), digest_of(key), opened) for i, (key, opened) in enumerate(given, 1))
        return KeysConfig(fixed, self.api_keys_file, self.public_paths)

    def _keys_of_file(self) -> tuple[str, ...]:
        """Raises SettingsError when there is none in the file, or no such file: that would let everybody in."""
        if self.api_key_file is None:
            return ()
        try:
            lines = self.api_key_file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--api-key-file: cannot read {str(self.api_key_file)!r}: {error}") from error
        if keys := tuple(line.strip() for line in lines if line.strip()):
            return keys
        raise SettingsError(f"--api-key-file: {self.api_key_file} has no key: that would let everybody in")
