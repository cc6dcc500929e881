"""Model names: a directory is itself, anything else is a hub id, and each failure is one clear error. No network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from neuronserve.server.checkpoint.hub import resolve_model as resolve
from neuronserve.server.errors import CheckpointError, SettingsError


def resolve_model(name: str, revision: str | None = None) -> Path:
    return resolve(name, revision, Path("cache"))


class Hub:
    """Stands where `snapshot_download` stands: checks ids as it does, then answers `outcome`."""

    def __init__(self, outcome: Path | Exception) -> None:
        self.outcome = outcome
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, repo_id: str, **options: Any) -> str:
        self.calls.append((repo_id, options))
        validate_repo_id(repo_id)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return str(self.outcome)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub(tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    monkeypatch.chdir(tmp_path)
    return found


def refusal(name: str, revision: str | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        resolve_model(name, revision)
    return str(caught.value)


def http_error(kind: type[Exception], status: int) -> Exception:
    response = httpx.Response(status, request=httpx.Request("GET", "http://hub.invalid/api/models/owner/name"))
    return kind("refused\nsecond line", response=response)  # type: ignore[call-arg]


def test_existing_directory_is_itself_and_the_hub_is_not_asked(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert resolve_model(str(tmp_path / "models")) == tmp_path / "models"
    assert resolve_model("models/mine") == Path("models/mine")
    assert resolve_model("./models") == Path("./models")
    assert hub.calls == []


def test_home_directory_is_expanded(tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m") == tmp_path / "m"


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./missing", "../missing", "~/missing", "~nobody-here/missing"])
def test_missing_path_is_a_missing_directory_and_the_hub_is_not_asked(hub: Hub, name: str) -> None:
    assert refusal(name) == f"model directory {name!r} does not exist"
    assert hub.calls == []


def test_file_is_told_from_a_directory(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    assert "is a file" in refusal(str(tmp_path / "model.bin"))
    assert "is a file" in refusal("model.bin")
    assert hub.calls == []


def test_revision_of_a_local_directory_is_a_contradiction(tmp_path: Path, hub: Hub) -> None:
    assert "'main'" in refusal(str(tmp_path), "main")


def test_a_download_is_in_the_log(tmp_path: Path, hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="neuronserve"):
        resolve_model("owner/name")
    first, last = [record.getMessage() for record in caplog.records]
    assert first == "downloading owner/name, unless it is in the local cache"
    assert last.startswith(f"owner/name is in {tmp_path / 'snapshot'}, after ")


def test_hub_id_is_downloaded_without_pickles_or_code(tmp_path: Path, hub: Hub) -> None:
    assert resolve_model("owner/name", "abc123") == tmp_path / "snapshot"
    [(repo_id, options)] = hub.calls
    assert (repo_id, options["revision"]) == ("owner/name", "abc123")
    wanted = {
        name
        for name in (
            *("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
            *("tokenizer.json", "tokenizer.model", "chat_template.jinja", "generation_config.json"),
            *("pytorch_model.bin", "modeling_x.py", "consolidated.safetensors", "onnx/config.json", "x.pkl", "x.gguf"),
        )
        if any(
            True
            for _ in huggingface_hub.utils.filter_repo_objects(
                [name], allow_patterns=options["allow_patterns"], ignore_patterns=options["ignore_patterns"]
            )
        )
    }
    assert wanted == {
        *("config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("tokenizer.json", "tokenizer.model", "chat_template.jinja", "generation_config.json"),
    }


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (http_error(RepositoryNotFoundError, 404), "no such repository"),
        (http_error(GatedRepoError, 403), "gated"),
        (http_error(RevisionNotFoundError, 404), "no such revision"),
        (LocalEntryNotFoundError("offline"), "cannot be reached"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE"),
        (httpx.ConnectError("connection reset"), "the download failed (connection reset)"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_each_failure_is_one_line_that_says_what_was_tried(hub: Hub, outcome: Exception, named: str) -> None:
    hub.outcome = outcome
    message = refusal("owner/name", "abc")
    assert message.startswith("model 'owner/name' at revision 'abc': no such local directory, and as a hub id:")
    assert named in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["", "a/b/c", "owner/na me", "-x", "owner//name", "x" * 300, "a\0b"])
def test_malformed_id_is_named_as_such(hub: Hub, name: str) -> None:
    assert "neither a local directory nor a well-formed hub id" in refusal(name)


def test_offline_machine_gets_the_same_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert "not in the local cache" in refusal("owner/name")


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "tokenizer.json", "model.gguf"])
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.example/spec/v1\noid sha256:{'0' * 64}\nsize 4096\n")
    for path in (tmp_path, tmp_path / name) if name.endswith(".gguf") else (tmp_path,):
        with pytest.raises(CheckpointError, match=f"{name}.*is a pointer of Git LFS"):
            resolve_model(str(path))


def test_pointers_of_files_that_are_not_needed_do_not_matter(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "consolidated.safetensors"):
        (tmp_path / name).write_text("version https://git-lfs.example/spec/v1\n")
    assert resolve_model(str(tmp_path)) == tmp_path
