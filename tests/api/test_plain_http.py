"""Clients that speak HTTP in ways of their own: an offer of HTTP/2 with a body, HTTP/1.0, compressed bodies."""

from __future__ import annotations

import gzip
import json
import socket

import httpx
import pytest

from tests.api.serving import Server

COMPLETION = {"prompt": "a", "max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
OFFER = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAAP__"}


def request(headers: dict[str, str], body: bytes, version: str = "1.1") -> bytes:
    declared = {"host": "localhost", "content-type": "application/json", **headers}
    if "transfer-encoding" in headers:
        body = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    else:
        declared["content-length"] = str(len(body))
    lines = [f"{name}: {value}" for name, value in declared.items()]
    return "\r\n".join([f"POST /v1/completions HTTP/{version}", *lines, "", ""]).encode() + body


def answers(server: Server, *parts: bytes) -> bytes:
    """Return the answer up to the server's close, when parts are sent one after the other."""
    data = b""
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        while part := connection.recv(65536):
            data += part
    return data


def text(server: Server) -> str:
    return str(httpx.post(f"{server.url}/v1/completions", json=COMPLETION).json()["choices"][0]["text"])


@pytest.mark.parametrize("framing", [{}, {"transfer-encoding": "chunked"}, {"expect": "100-continue"}])
@pytest.mark.parametrize("is_cut", [False, True])
def test_an_offer_of_http2_is_ignored_and_the_body_is_read(
    server: Server, framing: dict[str, str], is_cut: bool
) -> None:
    """Java's HttpClient and `curl --http2` make this offer to http:// addresses, with each request."""
    body = json.dumps(COMPLETION).encode()
    first = request({**OFFER, **framing}, body)
    last = request({"connection": "close"}, body)
    parts = [bytes([byte]) for byte in first] if is_cut else [first + first]
    got = answers(server, *parts, last)
    assert (
        got.count(b"HTTP/1.1 200 OK\r\n")
        == got.count(json.dumps(text(server), ensure_ascii=False).encode())
        == 3 - is_cut
    )


def test_a_stream_to_http_1_0_has_no_chunks(server: Server) -> None:
    head, _, body = answers(server, request({}, json.dumps({**COMPLETION, "stream": True}).encode(), "1.0")).partition(
        b"\r\n\r\n"
    )
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head
    frames = body.decode().split("\n\n")
    assert (frames[-2], frames[-1]) == ("data: [DONE]", "")
    choices = [json.loads(frame.removeprefix("data: "))["choices"] for frame in frames[:-2]]
    assert "".join(choice[0]["text"] for choice in choices if choice) == text(server)


def test_a_compressed_body_is_refused_by_its_name(server: Server) -> None:
    answer = httpx.post(
        f"{server.url}/v1/completions",
        content=gzip.compress(json.dumps(COMPLETION).encode()),
        headers={"content-type": "application/json", "content-encoding": "gzip"},
    )
    assert answer.status_code == 415
    assert answer.json()["error"]["message"] == "Compressed bodies are not read: the content encoding is 'gzip'."
