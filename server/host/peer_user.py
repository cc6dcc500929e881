"""Which user's process is at the other end of a TCP connection within this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ROOT_USER = 0


def is_same_user(client_port: int, server_port: int) -> bool:
    """Whether the client of a connection over loopback is this process's user or root.

    Linux lists sockets with their users (proc_pid_net(5)). Where there is no list, or the connection is not in it, as
    behind a proxy of another network namespace, nothing is known and the answer is True. Where several loopback
    addresses have sockets of these ports, all of them count.
    """
    users = set(_users(client_port, server_port))
    return users <= {ROOT_USER, os.geteuid()}


def _users(local_port: int, remote_port: int) -> Iterator[int]:
    """User ids of the sockets with these ports."""
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, remote, _, _, _, _, user, *_ = line.split()
            if (_port(local), _port(remote)) == (local_port, remote_port):
                yield int(user)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
