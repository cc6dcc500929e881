"""`neuronserve pick` by the endpoint picker protocol 1.0.0: what is answered to each message, and what is counted."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from neuronserve.server.errors import SettingsError
from neuronserve.server.route.picker.envoy import BODY_MODES
from neuronserve.server.route.picker.server import pick
from neuronserve.server.settings.route import PickSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import ROOT, Server, run_command, running_server, until
from tests.api.test_tls import make_certificate
from tests.route.pickers import DUPLEX, SERVICE, Gateway, Picker, running_picker
from tests.route.routers import metric, replicas

OPEN, UP, REQUESTS = (f"neuronserve_route_{name}" for name in ("open_tokens", "replica_up", "requests_total"))
PROMPT = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "x" * 4000}]}).encode()
NUM_TOKENS = pytest.approx(1000, abs=20)  # of PROMPT, by its bytes


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[Sequence[Server]]:
    with replicas(checkpoint, 2) as running:
        yield running


@pytest.fixture(scope="module")
def picker(servers: Sequence[Server]) -> Iterator[Picker]:
    with running_picker(*(server.url for server in servers), "--max-open-tokens", "1500") as running:
        until(lambda: list(metric(running.metrics_url, UP).values()) == [1, 1])
        yield running


@pytest.fixture
def ask(picker: Picker) -> Iterator[Callable[..., Gateway]]:
    """Begin a request; those that are open are closed after the test, and count no longer."""
    opened: list[Gateway] = []
    with picker.channel() as channel:

        def begin(*body: bytes, **more: Any) -> Gateway:
            opened.append(Gateway(channel))
            opened[-1].request(*body, **more)
            return opened[-1]

        yield begin
        for each in opened:
            each.close()
        until(lambda: not any(loads(picker).values()))


def loads(picker: Picker) -> dict[str, float]:
    """Open tokens by address."""
    return {name.partition("//")[2]: value for name, value in metric(picker.metrics_url, OPEN).items()}


def endpoints(servers: Sequence[Server]) -> list[str]:
    return [server.url.partition("//")[2] for server in servers]


@pytest.mark.parametrize("is_trailed", [False, True])
def test_a_choice_is_made_at_the_end_of_the_body_which_then_follows_in_chunks(
    picker: Picker, servers: Sequence[Server], ask: Callable[..., Gateway], is_trailed: bool
) -> None:
    body = PROMPT.replace(b"x" * 4000, bytes(range(97, 107)) * 22_000)
    parts = [body[begin : begin + 16384] for begin in range(0, len(body), 16384)]
    gateway = ask(*parts, is_end=not is_trailed)
    if is_trailed:
        gateway.send("request_trailers")
    chosen = gateway.chosen()
    assert sorted(chosen) == sorted(endpoints(servers))  # the second is for a retry
    assert loads(picker)[chosen[0]] == pytest.approx(len(body) / 4, rel=0.01)
    passed, ends = b"", []
    while len(passed) < len(body):
        chunk = gateway.next().request_body.response.body_mutation.streamed_response
        assert len(chunk.body) <= 62_000
        passed += chunk.body
        ends.append(chunk.end_of_stream)
    assert passed == body
    assert ends == [False] * (len(ends) - 1) + [not is_trailed]
    if is_trailed:
        assert gateway.next().HasField("request_trailers")


def test_a_request_without_body_is_placed_at_once(ask: Callable[..., Gateway]) -> None:
    assert len(ask(**{":path": "/v1/models"}).chosen()) == 2
    stored = [ask(**{":path": "/v1/files/file-1"}).chosen()[0] for _ in range(3)]
    assert len(set(stored)) == 1  # as in the router, things that are stored are at the first replica


@pytest.mark.parametrize("end", ["body", "trailers", "headers", "client"])
def test_tokens_are_open_from_the_choice_to_the_end_of_the_answer(
    picker: Picker, ask: Callable[..., Gateway], end: str
) -> None:
    gateway = ask(PROMPT)
    first = gateway.chosen()[0]
    gateway.next()
    assert loads(picker)[first] == NUM_TOKENS
    gateway.respond(kind="text/event-stream; charset=utf-8", is_end=end == "headers")
    assert gateway.next().HasField("response_headers")
    if end == "client":
        gateway.close()
    elif end != "headers":
        gateway.send("response_body", body=b"data: {}\n\n" * 300)
        passed = gateway.next().response_body.response.body_mutation.streamed_response
        assert (passed.body, passed.end_of_stream) == (b"data: {}\n\n" * 300, False)
        assert loads(picker)[first] == pytest.approx(1300, abs=20)  # an event is about a token
        gateway.send("response_body", end_of_stream=True) if end == "body" else gateway.send("response_trailers")
        answer = gateway.next()
        if end == "body":
            assert answer.response_body.response.body_mutation.streamed_response.end_of_stream
        else:
            assert answer.HasField("response_trailers")
    until(lambda: loads(picker)[first] == 0)


def test_equal_beginnings_go_to_one_replica_and_a_burst_is_spread(picker: Picker, ask: Callable[..., Gateway]) -> None:
    def first(content: str, **headers: str) -> str:
        gateway = ask(json.dumps({"prompt": content}).encode(), **headers)
        chosen = gateway.chosen()[0]
        gateway.close()
        until(lambda: not any(loads(picker).values()))
        return chosen

    for seed in "ab":
        assert len({first(seed * 3000 + "tail" * more) for more in range(4)}) == 1
    assert len({first(f"{i}" * 40, x_session_id="mine") for i in range(4)}) == 1
    burst = [ask(json.dumps({"prompt": f"{i}" * 600}).encode()) for i in range(8)]
    chosen = [each.chosen()[0] for each in burst]
    assert sorted(map(chosen.count, set(chosen))) == [4, 4]


@pytest.mark.parametrize("form", [list, ",".join])
def test_a_subset_is_obeyed(servers: Sequence[Server], ask: Callable[..., Gateway], form: Callable[..., Any]) -> None:
    for endpoint in endpoints(servers):
        assert [ask(PROMPT, subset=form([endpoint, "192.0.2.1:8000"])).chosen() for _ in range(2)] == [[endpoint]] * 2


@pytest.mark.parametrize("subset", [[], "", ["192.0.2.1:8000"]])
def test_a_subset_without_a_replica_that_is_up_is_refused(ask: Callable[..., Gateway], subset: Any) -> None:
    status, headers, body = ask(PROMPT, subset=subset, **{":path": "/v1/messages"}).refused()
    assert (status, headers["content-type"]) == (503, "application/json")
    error = json.loads(body)  # in the form of the API that has this path
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")


def test_requests_above_the_limit_of_open_tokens_are_shed(picker: Picker, ask: Callable[..., Gateway]) -> None:
    body = PROMPT.replace(b"x" * 4000, b"y" * 7000)
    assert len({ask(body).chosen()[0] for _ in range(2)}) == 2
    assert list(loads(picker).values()) == [pytest.approx(1750, abs=20)] * 2
    status, headers, body = ask(b"{}").refused()
    assert (status, headers["retry-after"]) == (429, "1")
    error = json.loads(body)["error"]
    assert error["code"] == "overloaded"
    assert "1500 tokens" in error["message"]


def test_a_replica_that_answers_in_anothers_place_gets_its_tokens(
    picker: Picker, servers: Sequence[Server], ask: Callable[..., Gateway]
) -> None:
    gateway = ask(PROMPT)
    first, second = gateway.chosen()
    gateway.next()
    gateway.respond(served=second)
    gateway.next()
    until(lambda: loads(picker) == {first: 0, second: NUM_TOKENS})
    gateway.close()
    until(lambda: set(metric(picker.metrics_url, UP).values()) == {1})  # the first was suspected, and has been probed


@pytest.mark.parametrize(
    "modes", [(BODY_MODES.index("BUFFERED"), DUPLEX), (DUPLEX, BODY_MODES.index("STREAMED")), (0, 0)]
)
def test_other_body_modes_are_refused_by_name(ask: Callable[..., Gateway], modes: tuple[int, int]) -> None:
    status, _, body = ask(PROMPT, modes=modes).refused()
    assert status == 503
    assert f"{BODY_MODES[modes[0]]} and" in body
    assert "FULL_DUPLEX_STREAMED" in body


def test_a_body_above_the_limit_is_refused(servers: Sequence[Server]) -> None:
    with running_picker(servers[0].url, "--max-body-bytes", "2000") as picker, picker.channel() as channel:
        gateway = Gateway(channel)
        gateway.request(b"x" * 1500, b"x" * 1500, is_end=False)
        status, _, body = gateway.refused()
    assert status == 413
    assert "2000 bytes" in body


def health(address: str, service: str) -> int:
    with grpc.insecure_channel(address) as channel:
        asked = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(asked, timeout=60).status)


def test_health_of_three_services_and_a_fleet_that_goes(checkpoint: Path, free_ports: list[int]) -> None:
    probes = f"127.0.0.1:{free_ports[0]}"
    with running_server(checkpoint) as server:
        by_name = f"localhost:{server.port}"  # endpoints are IP addresses
        with running_picker(by_name, "--grpc-health-port", probes.partition(":")[2]) as picker:
            until(lambda: health(probes, "readiness") == 1)
            assert {health(picker.address, name) for name in ("liveness", "readiness", SERVICE, "")} == {1}
            with picker.channel() as channel:
                open_ = Gateway(channel)
                open_.request(PROMPT)
                assert open_.chosen() == [f"127.0.0.1:{server.port}"]
                open_.respond(503)
                server.signal(signal.SIGKILL)
                until(lambda: health(probes, "readiness") == 2)
                assert [health(probes, name) for name in ("liveness", SERVICE)] == [1, 2]
                other = Gateway(channel)
                other.request()
                assert other.refused()[0] == 503
                picker.server.signal(signal.SIGTERM)  # what is open goes on
                open_.send("response_body", body=b"end", end_of_stream=True)
                answers = [open_.next().WhichOneof("response") for _ in range(3)]
                assert answers == ["request_body", "response_headers", "response_body"]
                open_.close()
            assert picker.server.wait() == 0


def certificate(picker: Picker) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = picker.address.rpartition(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as secure:
        assert secure.selected_alpn_protocol() == "h2"
        return ssl.DER_cert_to_PEM_cert(secure.getpeercert(binary_form=True) or b"")


def test_a_picker_without_certificate_signs_its_own(servers: Sequence[Server]) -> None:
    with running_picker(servers[0].url, is_secure=True) as picker:
        assert picker.server.url.startswith("https")
        assert certificate(picker) == certificate(picker)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
def test_certificates_of_files_are_read_again_and_clients_may_need_theirs(
    servers: Sequence[Server], tmp_path: Path
) -> None:
    first, second = (make_certificate(tmp_path, name) for name in ("first", "second"))
    used = tmp_path / "tls.crt", tmp_path / "tls.key"
    for source, target in zip(first, used, strict=True):
        shutil.copy(source, target)
    argv = ["--ssl-certfile", str(used[0]), "--ssl-keyfile", str(used[1]), "--ssl-ca-certs", str(second[0])]
    with running_picker(servers[0].url, *argv, "--ssl-cert-reqs", "2", is_secure=True) as picker:
        for own, code in (((second[1], second[0]), None), (None, grpc.StatusCode.UNAVAILABLE)):
            chain = (None, None) if own is None else tuple(each.read_bytes() for each in own)
            with grpc.secure_channel(
                picker.address, grpc.ssl_channel_credentials(first[0].read_bytes(), *chain)
            ) as channel:
                gateway = Gateway(channel)
                gateway.request(PROMPT)
                if code is None:
                    assert gateway.chosen()
                else:
                    with pytest.raises(grpc.RpcError) as refused:
                        gateway.next()
                    assert refused.value.code() is code
        for source, target in zip(second, used, strict=True):
            shutil.copy(source, target)
        until(lambda: certificate(picker) == second[0].read_text())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no replicas"),
        (["h:1", "--ssl-cert-reqs", "1", "--ssl-certfile", "a", "--ssl-ca-certs", "b"], "optional"),
        (["h:1", "--no-secure-serving", "--ssl-certfile", "a"], "contradicts"),
        (["unix:/run/a"], "needs an IP address"),
        (["h:1", "--ssl-certfile", "/none"], "/none"),
    ],
)
def test_settings_that_cannot_be_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        pick(load_settings(PickSettings, argv).pick_config)


def test_a_port_that_is_taken_and_a_missing_package_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flag, own in (("--port", []), ("--metrics-port", ["--port", "0"])):
            ended = run_command("pick", "127.0.0.1:1", "--host", "127.0.0.1", *own, flag, port, program="neuronserve")
            assert (ended.returncode, f"--port {port}: cannot listen" in ended.stderr) == (2, True), ended.stderr
    code = "import sys; sys.modules['grpc'] = None; from neuronserve.cli import main; sys.exit(main(['pick', 'h:1']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ended.returncode, "install neuronserve[pick]" in ended.stderr) == (2, True)
