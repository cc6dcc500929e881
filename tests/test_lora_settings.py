"""Adapters as they are named on the command line, in the environment and in YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronserve.server.config import LoraConfig, LoraModule
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings

TWO = (LoraModule("sql", "/a/b"), LoraModule("chat", "/c=d"))


def load(*argv: str) -> ServeSettings:
    return load_settings(ServeSettings, argv)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServeSettings.model_fields:
        monkeypatch.delenv(f"NEURONSERVE_{name.upper()}", raising=False)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ((), None),
        (("--enable-lora",), LoraConfig(4, 16)),
        (("--allow-runtime-lora-updating", "--max-loras", "2"), LoraConfig(2, 16)),
        (("--lora-modules", "sql=/a/b", "chat=/c=d", "--max-lora-rank", "256"), LoraConfig(4, 256, TWO)),
        (("--lora-modules", "sql=/a/b", "--lora-modules", "chat=/c=d"), LoraConfig(4, 16, TWO)),
        (("--lora-modules", '{"name": "sql", "path": "/a/b"}', "chat=/c=d"), LoraConfig(4, 16, TWO)),
    ],
)
def test_flags(argv: tuple[str, ...], expected: LoraConfig | None) -> None:
    settings = load("/m", *argv)
    assert settings.lora_config == expected
    assert settings.engine_config(Path("/m")).lora == expected


def test_there_is_room_for_all_that_are_named() -> None:
    config = load("--lora-modules", *(f"a{i}=/x" for i in range(6))).lora_config
    assert config is not None
    assert config.max_loras == 6


@pytest.mark.parametrize(
    "text", ["sql=/a/b, chat=/c=d", '[{"name": "sql", "path": "/a/b"}, {"name": "chat", "path": "/c=d"}]']
)
def test_the_environment(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NEURONSERVE_LORA_MODULES", text)
    assert load().lora_config == LoraConfig(4, 16, TWO)


def test_yaml(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("lora-modules:\n  - sql=/a/b\n  - {name: chat, path: /c=d}\nmax-loras: 3\n")
    assert load("--config", str(file)).lora_config == LoraConfig(3, 16, TWO)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--lora-modules", "sql"), "--lora-modules: must be NAME=PATH"),
        (("--lora-modules", "=/a"), "--lora-modules: must be NAME=PATH"),
        (("--lora-modules", "a=/a", "a=/b"), "lora_modules has a more than once"),
        (("--lora-modules", "a=/a", "b=/b", "--max-loras", "1"), "lora_modules has 2 adapters, and max_loras is 1"),
        (("--lora-modules", "m=/a", "--served-model-name", "m"), "lora_modules has m, which is the name of the model"),
        (("--lora-modules", '{"name": "a"}'), "--lora-modules: must have the keys name and path and no other"),
        (("--lora-modules", "{a}"), "--lora-modules: must be NAME=PATH or JSON"),
        (("--max-lora-rank", "257"), "--max-lora-rank: must be less than or equal to 256"),
        (("--max-loras", "0"), "--max-loras: must be greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused(argv: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(*argv)
