"""The data directory of a server that is given none, over HTTP."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.api.serving import environment, running_server

UPLOAD = {"files": {"file": ("a.jsonl", b'{"a": 1}\n')}, "data": {"purpose": "batch"}}


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def upload(checkpoint: Path, home: Path, *args: str) -> tuple[httpx.Response, str]:
    """Upload a file to a server of a user whose data is in `home`; return the answer and the server's log."""
    env = {**environment(), "XDG_DATA_HOME": str(home)}
    with running_server(checkpoint, *args, env=env) as server:
        return httpx.post(f"{server.url}/v1/files", **UPLOAD), server.log  # type: ignore[arg-type]


def test_files_are_kept_in_a_private_directory_of_the_port(checkpoint: Path, tmp_path: Path) -> None:
    port = free_port()
    answer, _ = upload(checkpoint, tmp_path, "--port", str(port))
    assert answer.status_code == 200
    directory = tmp_path / "neuronserve" / str(port)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {"neuronserve.sqlite3", "files"} <= {each.name for each in directory.iterdir()}


@pytest.mark.parametrize("args", [(), ("--data-dir", "")], ids=["port-0", "empty"])
def test_without_a_port_or_by_an_empty_name_nothing_is_written(
    args: tuple[str, ...], checkpoint: Path, tmp_path: Path
) -> None:
    answer, _ = upload(checkpoint, tmp_path, *(("--port", str(free_port())) if args else ()), *args)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_data_dir")
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_written_leaves_responses_in_memory(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "neuronserve").write_text("no directory")
    answer, log = upload(checkpoint, tmp_path, "--port", str(free_port()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_data_dir")
    assert "responses are kept in memory" in log
