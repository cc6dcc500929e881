"""Key files: their keys, errors with line numbers, and that no message contains a key."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import pytest

from neuronserve.server.api.keys.file import OTHERS, read_keys
from neuronserve.server.api.keys.key import Key, KeyLimits, KeysConfig, digest_of
from neuronserve.server.api.keys.ring import KeyRing
from neuronserve.server.api.keys.use import MAX_NAMES, Accounts
from neuronserve.server.clock import ManualClock
from neuronserve.server.errors import RateLimited, SettingsError

SECRET = "sk-s3cret-of-nobody"
GOOD = f"""
keys:
  - name: team-a
    key: {SECRET}
    limits: {{requests_per_minute: 60, tokens_per_minute: 1000, max_concurrent: 2}}
    priority: 5
  - name: ops
    sha256: {hashlib.sha256(b"ops-key").hexdigest()}
    scopes: [admin]
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_says_names_scopes_limits_and_priority(tmp_path: Path) -> None:
    first, second = read_keys(write(tmp_path / "keys.yaml", GOOD))
    inference = frozenset({"inference"})
    assert first == Key("team-a", digest_of(SECRET), inference, KeyLimits(60, 1000, 2), 5)  # type: ignore[arg-type]
    assert (second.name, second.digest, second.scopes) == ("ops", digest_of("ops-key"), {"admin"})
    assert SECRET not in repr(first)


def test_json_is_read_too(tmp_path: Path) -> None:
    text = json.dumps({"keys": [{"name": "a", "key": SECRET, "scopes": ["metrics", "inference"]}]})
    (key,) = read_keys(write(tmp_path / "keys.json", text))
    assert key.scopes == {"metrics", "inference"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must have a list `keys` with a key in it"),
        ("keys: []", "must have a list `keys` with a key in it"),
        ("keys: {a: b}", "must have a list `keys` with a key in it"),
        ("- name: a", "must have a list `keys` with a key in it"),
        (f"keys:\n  - name: a\n    key: '{SECRET}", "line "),
        (f"keys:\n  - name: a\n    key: *{SECRET}", "line 3: is not YAML"),
        (f"keys:\n  - name: a\n  - name: b\n    key: {SECRET}", "line 2: 'a' must have either `key` or `sha256`"),
        (f"keys:\n  - name: a b\n    key: {SECRET}", "line 2: name: "),
        (f"keys:\n  - name: none\n    key: {SECRET}", "line 2: name: 'none' is reserved"),
        (f"keys:\n  - key: {SECRET}", "line 2: object missing required field `name`"),
        (f"keys:\n  - name: a\n    key: {SECRET} {SECRET}", "line 2: key: "),
        ("keys:\n  - name: a\n    key: 12345", "line 2: key: expected `str | null`, got `int`"),
        (f"keys:\n  - name: a\n    sha256: {SECRET}", "line 2: sha256: "),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    scopes: []", "line 2: scopes: "),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    scopes: [root]", "line 2: scopes[0]: invalid enum value 'root'"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    limits: {{rpm: 1}}", "line 2: limits: object contains unknown"),
        (
            f"keys:\n  - name: a\n    key: {SECRET}\n    limits: {{max_concurrent: 0}}",
            "line 2: limits.max_concurrent: ",
        ),
        (f"keys:\n  - name: a\n    key: {SECRET}\n  - name: b\n    key: {SECRET}", "line 4: 'b' has the key of line 2"),
        (f"keys:\n  - name: a\n    key: x\n  - name: a\n    key: {SECRET}", "line 4: 'a' has the name of line 2"),
    ],
)
def test_what_is_wrong_is_named_by_line_without_the_key(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "keys.yaml", text)
    with pytest.raises(SettingsError) as error:
        read_keys(path)
    assert f"{path}: {problem}" in str(error.value)
    assert SECRET not in str(error.value)


def ring(path: Path, accounts: Accounts | None = None) -> KeyRing:
    return KeyRing(KeysConfig(file=path), accounts or Accounts(ManualClock()))


def test_a_bad_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "keys.yaml", GOOD)
    keys = ring(path)
    for text in (f"keys:\n  - name: a\n    kay: {SECRET}-new", "keys: []"):
        write(path, text)
        with caplog.at_level(logging.ERROR):
            keys.reload()
        assert keys.find(SECRET.encode()) is not None
    path.unlink()
    keys.reload()
    assert keys.find(SECRET.encode()) is not None
    assert "line 2: object contains unknown field `kay`" in caplog.text
    assert SECRET not in caplog.text


def test_use_belongs_to_the_name_and_goes_on_over_reloads(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "keys: [{name: a, key: old}, {name: b, key: other}]")
    keys = ring(path, accounts := Accounts(ManualClock()))
    old, totals = keys.find(b"old"), accounts.of("a").totals
    assert old is not None
    with old.use.generating(7):
        write(path, "keys: [{name: a, key: new, limits: {max_concurrent: 1}}]")
        keys.reload()
        assert keys.find(b"old") is keys.find(b"other") is keys.find(None) is keys.find(b"") is None
        new = keys.find(b"new")
        assert new is not None
        assert new.use is old.use
        assert totals.prompt_tokens == 7
        with pytest.raises(RateLimited, match="1 open requests"):
            new.use.check(1)
    with new.use.generating(1):
        pass
    assert (totals.requests, totals.rate_limited) == (2, 1)


def test_names_that_are_remembered_are_bounded(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "keys: [{name: a, key: a}]")
    keys = ring(path, accounts := Accounts(ManualClock()))
    for i in range(MAX_NAMES + 5):
        keys.named(f"gone-{i}").use.found_cached(1)
    assert len(accounts.uses) == MAX_NAMES + 1
    assert accounts.uses[OTHERS].totals.cached_tokens >= 5


def test_a_key_has_a_best_priority_which_is_its_default(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", "keys: [{name: a, key: a, priority: 5}, {name: b, key: b}]")
    a, b = ring(path).find(b"a"), ring(path).find(b"b")
    assert a is not None
    assert b is not None
    assert [a.priority(asked) for asked in (None, 0, 5, 9)] == [5, 5, 5, 9]
    assert [b.priority(asked) for asked in (None, -3, 9)] == [0, -3, 9]
