"""Addresses of the replicas that Ray Serve keeps, as this process was last told.

Apart from the router because Serve copies the router's module into each process, with all that its globals hold.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ray.serve.handle import DeploymentHandle

from ..route.address import Address

ADDRESS = "address"  # key of a replica's metadata
_known: defaultdict[str, list[Address]] = defaultdict(list)  # by application
_followers: defaultdict[str, list[Callable[[list[Address]], None]]] = defaultdict(list)


def update(app: str, addresses: list[Address]) -> None:
    """Note the addresses of an application's replicas, in any thread."""
    if addresses != _known[app]:
        _known[app] = addresses
        for changed in _followers[app]:
            changed(addresses)


def follow(handle: DeploymentHandle[Any], changed: Callable[[list[Address]], None]) -> None:
    """Call `changed` in the running event loop with the replicas of a deployment, now and at each change."""
    loop = asyncio.get_running_loop()

    def call(addresses: list[Address]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(changed, addresses)

    _followers[handle.app_name].append(call)
    call(_known[handle.app_name])
    handle.options(stream=True)  # which makes the handle's router
