"""User of the process at the other end of a TCP connection within this host."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
ROOT_USER = 0


def is_same_user(client_port: int, server_port: int) -> bool:
    """Return whether the client of a loopback connection is this process's user or root.

    Linux lists sockets with their users (proc_pid_net(5)). When there is no list, or the connection is not in it (as
    behind a proxy in another network namespace), nothing is known and the answer is True. When several loopback
    addresses have sockets of these ports, all of them count.
    """
    users = set(_users(client_port, server_port))
    return users <= {ROOT_USER, os.geteuid()}


def _users(local_port: int, remote_port: int) -> Iterator[int]:
    """Yield the user ids of the sockets with these ports."""
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
