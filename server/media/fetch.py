"""Fetching of pictures from hosts that the operator allows, never from a private network.

A name is resolved once, each of its addresses is checked, and the connection goes to a checked address, so that a name
whose answer changes leads nowhere else. Each redirect is checked like the first address. No proxy, cookie or
credential is used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

MAX_REDIRECTS = 3
MAX_URL_CHARS = 4096
REDIRECTS = (301, 302, 303, 307, 308)

Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[list[Address]]]


class FetchError(Exception):
    """Nothing was fetched; `str()` is fit to be shown to a user."""


def is_public(address: Address) -> bool:
    """Return whether the address belongs to the public Internet, by the registries that Python's ipaddress knows.

    Addresses that contain an IPv4 address, by translation or tunnels, are not public.
    """
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour or address.teredo):
        return False
    is_translated = isinstance(address, IPv6Address) and address.packed[:4] == b"\x00\x64\xff\x9b"
    return address.is_global and not address.is_multicast and not is_translated


async def resolve(host: str, port: int) -> list[Address]:
    """Return all addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(each[4][0]).partition("%")[0]) for each in found))


class Fetcher:
    """Fetches files of at most `max_bytes` within `timeout_s`."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        max_bytes: int,
        timeout_s: float,
        resolve: Resolve = resolve,
        permits: Callable[[Address], bool] = is_public,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes, self._timeout_s = max_bytes, timeout_s
        self._resolve, self._permits = resolve, permits

    async def get(self, url: str) -> bytes:
        """Return the file at a URL. Raises FetchError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except TimeoutError as error:
            raise FetchError(f"was not fetched within {self._timeout_s:g} s (--media-fetch-timeout)") from error

    async def _follow(self, url: str) -> bytes:
        for _ in range(1 + MAX_REDIRECTS):
            parts = self._checked(url)
            location, data = await self._request(parts, await self._address(parts))
            if location is None:
                return data
            url = urljoin(url, location)
        raise FetchError(f"was redirected more than {MAX_REDIRECTS} times")

    def _checked(self, url: str) -> SplitResult:
        """Return the parts of a URL whose host is allowed. Raises FetchError."""
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            raise FetchError(f"has a URL that is not valid: {error}") from error
        if parts.scheme not in ("http", "https") or not host or len(url) > MAX_URL_CHARS:
            raise FetchError(f"must have an http(s) URL of at most {MAX_URL_CHARS} characters")
        if not url.isascii() or any(character <= " " for character in url) or parts.username is not None:
            raise FetchError("must have a URL without credentials, spaces and characters beyond ASCII")
        if host not in self._hosts:
            known = f"; it has {', '.join(sorted(self._hosts))}" if self._hosts else ""
            raise FetchError(f"is at {host[:100]!r}, a host that --allowed-media-hosts does not have{known}")
        return parts

    async def _address(self, parts: SplitResult) -> Address:
        """Return an address of the host. Raises FetchError if any of them is not public."""
        host = parts.hostname or ""
        try:
            addresses = await self._resolve(host, _port(parts))
        except (OSError, UnicodeError) as error:
            raise FetchError(f"is at {host[:100]!r}, a host that has no address") from error
        if not addresses or not all(self._permits(address) for address in addresses):
            raise FetchError(f"is at {host[:100]!r}, a host with an address outside the public Internet")
        return addresses[0]

    async def _request(self, parts: SplitResult, address: Address) -> tuple[str | None, bytes]:
        """Return where the answer redirects to, or None and its data. Raises FetchError."""
        import httpx2

        host = f"[{address}]" if address.version == 6 else str(address)
        url = parts._replace(netloc=f"{host}:{_port(parts)}", fragment="").geturl()
        headers = {"Host": parts.netloc, "Accept": "image/*", "Accept-Encoding": "identity"}
        extensions = {"sni_hostname": parts.hostname}
        try:
            async with (
                httpx2.AsyncClient(trust_env=False, timeout=self._timeout_s, follow_redirects=False) as client,
                client.stream("GET", url, headers=headers, extensions=extensions) as answer,
            ):
                if answer.status_code in REDIRECTS and "location" in answer.headers:
                    return answer.headers["location"], b""
                if answer.status_code != 200:
                    raise FetchError(f"was not fetched: {parts.hostname} answers with the status {answer.status_code}")
                return None, await self._read(answer)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise FetchError(f"was not fetched from {parts.hostname}: {type(error).__name__}") from error

    async def _read(self, answer: Any) -> bytes:
        data = bytearray()
        async for part in answer.aiter_raw():
            data += part
            if len(data) > self._max_bytes:
                raise FetchError(f"has more than {self._max_bytes} bytes (--max-image-bytes)")
        return bytes(data)


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)
