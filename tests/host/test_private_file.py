"""Files of a server that no other user may read, and files of others that are not believed."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from neuronserve.server.config import TraceConfig
from neuronserve.server.engine.trace.files import require_directory
from neuronserve.server.host.private_file import is_trusted, open_private, tighten
from neuronserve.testkit.cassette.cassette import CassetteWriter
from tests.api.serving import ROOT, environment, running_server, write_checkpoint

OTHER = 65534  # a user of every Linux
IS_ROOT = os.geteuid() == 0
COMPILE = """
import sys
from neuronserve.server.kernels.isa import cache
path = cache.use_cache(sys.argv[1], report=print)
from neuronserve.server.kernels.isa.jit import kernel
@kernel
def answer(operands, cores, step, worker, workers):
    pass
answer.make()
print(path)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def everybody_reads() -> None:
    """Umask 022 for what the test starts."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.slow
@pytest.mark.usefixtures("everybody_reads")
def test_all_that_a_server_writes_is_its_users_alone(tmp_path: Path) -> None:
    data, ready = tmp_path / "data", tmp_path / "ready.json"
    data.mkdir(0o755)
    (data / "files").mkdir(0o777)
    (data / "neuronserve.sqlite3").touch(0o644)
    checkpoint = write_checkpoint(tmp_path / "model")
    flags = ("--data-dir", str(data), "--ready-file", str(ready))
    with running_server(checkpoint, *flags) as server:
        sent = {"file": ("a.jsonl", b"{}\n")}
        assert httpx.post(f"{server.url}/v1/files", files=sent, data={"purpose": "batch"}).status_code == 200
        names = {path.name for path in data.rglob("*")}
        assert {"files", "neuronserve.sqlite3", "neuronserve.sqlite3-wal"} <= names
        assert {path: mode(path) & 0o077 for path in (data, ready, *data.rglob("*")) if mode(path) & 0o077} == {}


@pytest.mark.slow
def test_a_directory_that_holds_other_things_keeps_its_rights(tmp_path: Path) -> None:
    """Check a data directory in /var/lib, which other users need."""
    (tmp_path / "home").mkdir(0o755)
    (tmp_path / "home" / "another").touch(0o644)
    checkpoint = write_checkpoint(tmp_path / "model")
    with running_server(checkpoint, "--data-dir", str(tmp_path / "home")):
        assert mode(tmp_path / "home") == 0o755
        assert mode(tmp_path / "home" / "another") == 0o644
        assert mode(tmp_path / "home" / "neuronserve.sqlite3") == 0o600


@pytest.mark.usefixtures("everybody_reads")
def test_cassettes_and_traces_are_private(tmp_path: Path) -> None:
    CassetteWriter(tmp_path / "cassette", "https://upstream.example", is_appending=False).close()
    require_directory(TraceConfig(str(tmp_path / "traces"), 1))
    assert (mode(tmp_path / "cassette"), mode(tmp_path / "traces")) == (0o600, 0o700)


def test_a_group_keeps_its_rights_where_setgid_says_so(tmp_path: Path) -> None:
    """Check a volume that Kubernetes has given to the group of a pod."""
    for before, after in {0o777: 0o700, 0o2777: 0o2770, 0o2770: 0o2770, 0o700: 0o700}.items():
        tmp_path.chmod(before)
        tighten(tmp_path)
        assert mode(tmp_path) == after
    tmp_path.chmod(0o700)


def test_an_old_file_is_taken_from_others(tmp_path: Path) -> None:
    (tmp_path / "old").touch(0o644)
    open_private(tmp_path / "old", "ab").close()
    assert mode(tmp_path / "old") == 0o600


def compiled(cache: Path) -> subprocess.CompletedProcess[str]:
    program = cache.parent / "program.py"
    program.write_text(COMPILE)
    argv = [sys.executable, str(program), str(cache)]
    return subprocess.run(argv, capture_output=True, text=True, env=environment(), check=True, cwd=ROOT)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self._file), "w")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.chmod(0o666), id="world-writable"),
        pytest.param(
            lambda path: os.chown(path, OTHER, OTHER),
            id="of another user",
            marks=pytest.mark.skipif(not IS_ROOT, reason="root alone can give files away"),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_kernels_that_others_may_have_written_do_not_run(tmp_path: Path, spoil: object, kind: str) -> None:
    cache, payload = tmp_path / "cache", tmp_path / "ran"
    path = Path(compiled(cache).stdout.split()[-1])
    (file,) = path.rglob(f"*.{kind}")
    trusted = pickle.dumps(Payload(payload))
    file.write_bytes(trusted)
    spoil(file)  # type: ignore[operator]
    ended = compiled(cache)
    assert not payload.exists()
    assert "1 files in" in ended.stdout
    assert is_trusted(next(path.rglob(f"*.{kind}")).stat()), "it is compiled again"
    assert "files in" not in compiled(cache).stdout


def test_the_payload_of_that_test_would_run(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran"))).close()
    assert (tmp_path / "ran").exists()


def test_who_is_trusted(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for each, trusted in {0o600: True, 0o644: True, 0o664: True, 0o666: False, 0o602: False}.items():
        file.touch()
        file.chmod(each)
        assert is_trusted(file.stat()) is trusted
