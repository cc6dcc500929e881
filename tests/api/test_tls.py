"""HTTPS over real sockets: certificates that are exchanged under open streams, and clients' certificates."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from neuronserve.server.api.http.tls import TlsConfig
from neuronserve.server.errors import SettingsError
from tests.api.serving import ROOT, Server, environment, run_command, running_server, until, write_checkpoint

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for this host that vouches for itself, and its key."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*argv, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tls")
    for name in ("first", "second", "client"):
        make_certificate(directory, name)
    shutil.copy(directory / "first.pem", directory / "tls.crt")
    shutil.copy(directory / "first.key", directory / "tls.key")
    return directory


@pytest.fixture(scope="module")
def secure(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    files = ["--ssl-certfile", str(folder / "tls.crt"), "--ssl-keyfile", str(folder / "tls.key")]
    clients = ["--ssl-ca-certs", str(folder / "client.pem"), "--ssl-cert-reqs", "1"]
    with running_server(model, *files, *clients, "--device", "slow:0.02") as running:
        yield running


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cert))


def subject(server: Server, cert: Path) -> str:
    """The name in the certificate that a new connection gets, which `cert` vouches for."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain,
        trusting(cert).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        (((_, name),),) = connection.getpeercert()["subject"]  # type: ignore[index,misc]
        return str(name)


def test_the_images_probe_speaks_whichever_protocol_the_server_does(secure: Server, tmp_path: Path) -> None:
    def code(port: int) -> int:
        probe = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
        return subprocess.run(probe, env={**os.environ, "NEURONSERVE_PORT": str(port)}, check=False).returncode

    assert code(secure.port) == 0
    with running_server(write_checkpoint(tmp_path)) as plain:
        assert code(plain.port) == 0
    assert code(plain.port) == 1


def test_clients_and_commands_speak_https(secure: Server, folder: Path) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    context = trusting(folder / "first.pem")
    with openai.OpenAI(base_url=f"{secure.url}/v1", api_key="any", http_client=httpx.Client(verify=context)) as client:
        assert client.completions.create(model="fake", prompt="abc", max_tokens=3).usage
        assert list(client.completions.create(model="fake", prompt="abc", max_tokens=3, stream=True))
    env = environment(SSL_CERT_FILE=str(folder / "first.pem"))
    for name in ("ls", "top", "monitor"):
        flags = ("--once", "--interval", "0.1") if name != "ls" else ()
        ended = run_command(name, "--url", secure.url, *flags, env=env)
        assert (ended.returncode, ended.stderr) == (0, "")
    load = ["bench", "serve", "--base-url", secure.url, "--num-prompts", "4", "--random-input-len", "8"]
    ended = run_command(*load, "--random-output-len", "4", "--result-dir", str(folder), env=env, program="neuronserve")
    assert ended.returncode in {0, 3}, ended.stderr  # 3: this machine was too busy for the figures to count
    refused = run_command("ls", "--url", secure.url)
    assert refused.returncode != 0
    assert "certificate" in refused.stderr.lower()


def test_who_speaks_no_tls_harms_nobody(secure: Server, folder: Path) -> None:
    for data in (b"GET /health HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""):
        with socket.create_connection(("127.0.0.1", secure.port), timeout=30) as plain:
            plain.sendall(data)
    assert httpx.get(f"{secure.url}/health/ready", verify=trusting(folder / "first.pem")).status_code == 200


@pytest.mark.slow
def test_a_new_certificate_is_taken_and_open_streams_go_on(secure: Server, folder: Path) -> None:
    body = {"prompt": "abc", "max_tokens": 300, "stream": True, "ignore_eos": True}
    context = trusting(folder / "first.pem")
    with httpx.stream("POST", f"{secure.url}/v1/completions", json=body, verify=context, timeout=120) as running:
        lines = running.iter_lines()
        next(lines)
        shutil.copy(folder / "second.pem", folder / "tls.crt")  # not yet with its key: nothing changes
        shutil.copy(folder / "second.key", folder / "tls.key")
        until(lambda: _is(secure, folder / "second.pem", "second"))
        assert list(lines)[-2] == "data: [DONE]"
    (folder / "tls.key").write_text("no key at all")
    assert _is(secure, folder / "second.pem", "second")


def _is(server: Server, cert: Path, name: str) -> bool:
    try:
        return subject(server, cert) == name
    except ssl.SSLCertVerificationError:
        return False


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"keyfile": "second.key"}, "the private key is not that of the certificate"),
        ({"certfile": "absent.pem"}, "No such file"),
        ({"certfile": "first.key"}, "no PEM file of what is needed"),
        ({"keyfile": None}, "no PEM file of what is needed"),
        ({"ca_certs": "first.key"}, "no PEM file of what is needed"),
    ],
)
def test_bad_files_are_named(folder: Path, changes: dict[str, str | None], problem: str) -> None:
    names: dict[str, str | None] = {"certfile": "first.pem", "keyfile": "first.key", **changes}
    files = {field: None if name is None else folder / name for field, name in names.items()}
    with pytest.raises(SettingsError, match=problem) as error:
        TlsConfig(**files).context()  # type: ignore[arg-type]
    assert str(folder) in str(error.value)


@pytest.mark.slow
def test_a_server_with_a_bad_certificate_does_not_start(folder: Path, checkpoint: Path) -> None:
    files = ["--ssl-certfile", str(folder / "first.pem"), "--ssl-keyfile", str(folder / "second.key")]
    ended = run_command("serve", str(checkpoint), "--port", "0", *files)
    assert ended.returncode != 0
    assert "the private key is not that of the certificate" in ended.stderr
    for argv in (["--ssl-keyfile", "x"], ["--ssl-certfile", "x", "--ssl-cert-reqs", "2"]):
        ended = run_command("serve", str(checkpoint), "--port", "0", *argv)
        assert (ended.returncode, " needs --ssl-" in ended.stderr) == (2, True)
