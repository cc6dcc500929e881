"""Servers that Ray Serve keeps for `neuronserve serve --distributed ray`, whose router is in this process."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import placement_group, remove_placement_group

from neuronserve.server.errors import StartError
from neuronserve.server.ray.app import APP, Plan, servers_of
from neuronserve.server.ray.members import follow
from neuronserve.server.ray.placement import CannotPlace, Room
from neuronserve.server.route.fleet import Fleet

log = logging.getLogger("neuronserve.ray")
PLACE_S = 10.0  # for Ray to find room for all replicas


class RayServers:
    """The deployed servers: `keep` follows them, `close` removes them."""

    num_needed = 1  # servers before the router is ready: Serve has waited for all of them

    def __init__(self, plan: Plan) -> None:
        """Deploy. Raises StartError: CannotPlace when Ray finds no room in time, and with a server's reason."""
        if APP in serve.status().applications:
            raise StartError(f"this Ray cluster has the application {APP!r} already: `serve shutdown` removes it")
        _require_free(plan, 1 if plan.settings.num_replicas == "auto" else plan.settings.num_replicas)
        serve.start(proxy_location="Disabled")
        try:
            self._handle: DeploymentHandle[Any] = serve.run(servers_of(plan), name=APP, route_prefix=None)
        except RuntimeError as error:
            reasons = [each.message for each in serve.status().applications[APP].deployments.values()]
            _remove()
            raise StartError("; ".join(reasons) or str(error)) from error

    async def keep(self, fleet: Fleet) -> None:
        """Have the router follow the servers, and never return."""
        follow(self._handle, fleet.follow)
        await asyncio.Event().wait()

    def signal(self, number: int) -> None:
        """Say what a signal does not do."""
        log.warning("%s is not passed to servers on other nodes", signal.Signals(number).name)

    async def close(self) -> None:
        """Remove the servers, which drain."""
        await asyncio.to_thread(_remove)


def _remove() -> None:
    """Remove the application, and with the last one Serve, which was started without HTTP proxies."""
    serve.delete(APP)
    if not serve.status().applications:
        serve.shutdown()


def _require_free(plan: Plan, count: int) -> None:
    """Raise CannotPlace unless Ray finds room for all replicas beside what runs on the cluster."""
    trial = placement_group([plan.need.bundle] * count, strategy="PACK")
    has_room = trial.wait(PLACE_S)
    remove_placement_group(trial)
    if not has_room:
        free = ray.available_resources()
        room = Room(int(free.get("CPU", 0)), int(free.get("memory", 0)))
        raise CannotPlace(
            f"{count} replicas need {plan.need} each, and Ray has found no room for them within {PLACE_S:g} s; "
            f"all nodes together have {room} unused"
        )
