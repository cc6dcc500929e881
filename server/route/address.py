"""Addresses of replicas: their written form, the file that lists them, and names that stand for several."""

from __future__ import annotations

import asyncio
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import SettingsError

FORMS = "[http://|https://]HOST:PORT, unix:PATH or dns:HOST:PORT, with @ZONE behind it where zones matter"
_FORM = re.compile(
    r"(?:(?P<scheme>https?)://|(?P<dns>dns:))?(?P<host>\[[0-9a-fA-F:.]+\]|[^\s/@:\[\]]+):(?P<port>\d{1,5})/?"
    r"(?:@(?P<zone>\S+))?|unix:(?P<path>[^\s@]+)(?:@(?P<path_zone>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Place where a replica listens: a TCP port, or a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""
    is_tls: bool = False
    is_dns: bool = False  # `host` stands for the replicas that it resolves to
    zone: str = ""

    @property
    def name(self) -> str:
        """The address in one form, which identifies the replica."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"http{'s' * self.is_tls}://{host}:{self.port}"

    @property
    def host_header(self) -> bytes:
        """Value of Host in requests."""
        return b"localhost" if self.path else self.name.partition("//")[2].encode()


def parse(text: str, source: str) -> Address:
    """Read one address. Raises SettingsError that names its `source`."""
    found = _FORM.fullmatch(text)
    if found is None or int(found["port"] or 0) > 65535:
        raise SettingsError(f"{source}: {text[:200]!r} is no address of a replica: use {FORMS}")
    if found["path"]:
        return Address(path=found["path"], zone=found["path_zone"] or "")
    return Address(
        host=found["host"].strip("[]"),
        port=int(found["port"]),
        is_tls=found["scheme"] == "https",
        is_dns=found["dns"] is not None,
        zone=found["zone"] or "",
    )


def read_file(file: Path) -> list[Address]:
    """Read a file with one address a line; # begins a comment. Raises SettingsError."""
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--replicas-file {file}: {error}") from error
    return [parse(line, f"--replicas-file {file}") for line in lines if line]


async def resolved(address: Address, is_by_ip: bool = False) -> list[Address]:
    """Return the replicas of an address: those that a DNS name (`is_by_ip`: any name) has now. Raises OSError."""
    if not address.is_dns and not is_by_ip:
        return [address]
    found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [replace(address, host=str(host[0]), is_dns=False) for *_, host in found]
