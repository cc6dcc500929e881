"""Pictures are fetched from allowed hosts on the public Internet alone; redirects and names change nothing of that."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from neuronserve.server.media.fetch import Address, Fetcher, FetchError, is_public, resolve
from tests.api.test_tls import make_certificate

BODY = b"picture"
NAMES = {"pictures.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "inner.test": ["127.0.0.2"]}
NAMES["localhost"] = ["127.0.0.1"]
NAMES["both.test"] = ["127.0.0.1", "10.0.0.1"]


class Site:
    """An HTTP server whose answers are by path, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        path = head.split(" ")[1]
        try:
            writer.write(self.reply(path))
            await writer.drain()
            while path in ("/slow", "/endless"):
                writer.write(b"x" * (1 if path == "/slow" else 4096))
                await writer.drain()
                await asyncio.sleep(0.02 if path == "/slow" else 0)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def reply(self, path: str) -> bytes:
        at = f"http://{{}}:{self.port}"
        to = {
            "/again": "/file",
            "/loop": "/loop",
            "/out": at.format("127.0.0.1") + "/file",
            "/inner": at.format("inner.test") + "/file",
            "/file-scheme": "file:///etc/passwd",
        }.get(path)
        if to is not None:
            return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
        if path == "/gone":
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        if path in ("/slow", "/endless"):
            return b"HTTP/1.1 200 OK\r\n\r\n"
        if path == "/silent":
            return b""
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    yield site
    server.close()


async def named(host: str, port: int) -> list[Address]:
    if host not in NAMES:
        raise OSError("no such host")
    return [ip_address(each) for each in NAMES[host]]


def fetcher(*hosts: str, timeout_s: float = 20.0) -> Fetcher:
    """A fetcher to which 127.0.0.1 alone is the public Internet."""
    return Fetcher(hosts, 10_000, timeout_s, named, lambda address: str(address) == "127.0.0.1")


async def test_a_file_of_an_allowed_host(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await fetcher("pictures.test").get(f"http://PICTURES.test:{site.port}/file?a=1#b") == BODY
    assert "GET /file?a=1 HTTP/1.1" in site.asked[0]
    assert f"host: pictures.test:{site.port}" in site.asked[0].lower()
    assert "cookie" not in site.asked[0].lower()


async def test_a_redirect_to_an_allowed_host(site: Site) -> None:
    assert await fetcher("pictures.test").get(f"http://pictures.test:{site.port}/again") == BODY


@pytest.mark.parametrize(
    ("url", "reason", "num_asked"),
    [
        ("http://other.test:{}/file", "--allowed-media-hosts does not have; it has inner.test, pictures.test", 0),
        ("http://127.0.0.1:{}/file", "--allowed-media-hosts does not have", 0),
        ("http://inner.test:{}/file", "an address outside the public Internet", 0),
        ("http://pictures.test:{}/out", "'127.0.0.1', a host that --allowed-media-hosts does not have", 1),
        ("http://pictures.test:{}/inner", "'inner.test', a host with an address outside the public Internet", 1),
        ("http://pictures.test:{}/file-scheme", "must have an http", 1),
        ("http://pictures.test:{}/loop", "more than 3 times", 4),
        ("http://pictures.test:{}/gone", "the status 404", 1),
        ("http://pictures.test:{}/endless", "more than 10000 bytes", 1),
        ("http://pictures.test:{}/silent", "was not fetched from pictures.test", 1),
        ("http://user:secret@pictures.test:{}/file", "without credentials", 0),
        ("http://pictures.test:{}/a b", "without credentials, spaces", 0),
        ("http://pictures.test:{}/a\r\nX: y", "without credentials, spaces|more than|must have|not have", 0),
        ("http://pictures.test:99999{}/", "URL that is not valid", 0),
        ("http://[::1/", "URL that is not valid", 0),
        ("http://pictures.test:{}/" + "a" * 5000, "at most 4096 characters", 0),
    ],
)
async def test_a_file_that_is_not_fetched(site: Site, url: str, reason: str, num_asked: int) -> None:
    with pytest.raises(FetchError, match=reason):
        await fetcher("pictures.test", "inner.test").get(url.format(site.port))
    assert len(site.asked) == num_asked


async def test_a_host_with_one_inner_address_is_refused(site: Site) -> None:
    with pytest.raises(FetchError, match="outside the public Internet"):
        await fetcher("both.test").get(f"http://both.test:{site.port}/file")
    with pytest.raises(FetchError, match="has no address"):
        await fetcher("none.test").get(f"http://none.test:{site.port}/file")


async def test_the_time_of_a_fetch_is_bounded(site: Site) -> None:
    """The whole fetch, though each part comes in time."""
    begin = time.monotonic()
    with pytest.raises(FetchError, match=r"not fetched within 0\.5 s"):
        await fetcher("pictures.test", timeout_s=0.5).get(f"http://pictures.test:{site.port}/slow")
    assert time.monotonic() - begin < 20  # it would never end


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
async def test_a_certificate_is_checked_against_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address, which the certificate has too, but the server must prove its name."""
    cert, key = make_certificate(tmp_path, "localhost")
    site, asked, context = Site(), list[str](), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    context.sni_callback = lambda _, name, __: asked.append(name)
    server = await asyncio.start_server(site.answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(FetchError, match=r"was not fetched from localhost"):
            await fetcher("localhost").get(f"https://localhost:{port}/file")  # nobody has signed it
        trusting = ssl.create_default_context(cafile=str(cert))
        monkeypatch.setattr("httpcore2.default_ssl_context", lambda **_: trusting)
        assert await fetcher("localhost").get(f"https://localhost:{port}/file") == BODY
        with pytest.raises(FetchError, match=r"was not fetched from other\.test"):
            await fetcher("other.test").get(f"https://other.test:{port}/file")
        assert asked == ["localhost", "localhost", "other.test"]
    finally:
        server.close()


async def test_names_of_this_host_are_refused(site: Site) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        with pytest.raises(FetchError, match=r"public Internet|no address"):
            await Fetcher((host.strip("[]"),), 1000, 20.0).get(f"http://{host}:{site.port}/file")
    assert not site.asked
    assert not any(is_public(address) for address in await resolve("localhost", 80))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "fe80::1", "fc00::1", "::", "ff02::1", "::ffff:8.8.8.8"),
        *("::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ip_address(address))
