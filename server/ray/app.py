"""The application of Ray Serve: the deployment of servers, and a router in front of it.

`build` is for Serve's configuration files: import_path `neuronserve.server.ray.app:build`, with settings of
`neuronserve serve` as args.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..checkpoint.hub import resolve_model
from ..route.config import RouteConfig
from ..route.fleet import Fleet
from ..route.proxy import Proxy, build_app
from ..settings.replicas import ELSEWHERE, router_config
from ..settings.serve import ServeSettings
from ..settings.sources import load_settings
from .members import follow
from .placement import Room, require_room, room_of
from .prompt_router import PromptRouter
from .replica import BATCH_S, BUSY, QUEUED, ServerReplica

APP, SERVERS, ROUTER = "neuronserve", "Server", "Router"
MAX_OPEN = 4096  # requests of one replica or router at once, beyond its server's own limits
DRAIN_MARGIN_S = 10.0  # for a server to end after its open requests had their time
MOST_BUSY = 0.8  # part of the batch's places, above which `auto` adds a replica
QUEUED_TOKENS = 4096  # prompt tokens that wait, for which `auto` adds a replica
HEAD_NODE = {"node:__internal_head__": 0.001}


@dataclass(frozen=True, slots=True)
class Plan:
    """Deployment of servers: their settings, the room of each, and how many there are."""

    program: str  # `python -m PROGRAM serve`
    given: Mapping[str, Any]
    settings: ServeSettings
    need: Room
    most: int  # replicas that the cluster has room for


def plan_of(given: Mapping[str, Any], program: str = "neuronserve") -> Plan:
    """Check settings against the cluster that this process is connected to. Raises StartError."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(dict(given), file)
        file.flush()
        settings = load_settings(ServeSettings, ["--config", file.name])
    model = resolve_model(settings.model, settings.revision, settings.gguf_cache)
    nodes = [
        Room(int(each["Resources"].get("CPU", 0)), int(each["Resources"].get("memory", 0)), each["NodeManagerAddress"])
        for each in ray.nodes()
        if each["Alive"]
    ]
    count = None if settings.num_replicas == "auto" else settings.num_replicas
    need = room_of(settings, model, nodes, count)
    own = {name: value for name, value in given.items() if name not in ELSEWHERE} | {"cpu_threads": need.num_cpus}
    return Plan(program, own, settings, need, require_room(need, count or 1, nodes))


def servers_of(plan: Plan) -> serve.Application:
    """Return the deployment of servers, without a router."""
    settings, need = plan.settings, plan.need
    num_places, key = settings.max_num_seqs * settings.data_parallel_size, (*settings.api_key, "")[0]
    number: dict[str, Any] = {"num_replicas": settings.num_replicas}
    if settings.num_replicas == "auto":
        policy = {"policy_function": scaled}
        number = {"autoscaling_config": AutoscalingConfig(max_replicas=plan.most, upscale_delay_s=5, policy=policy)}
    deployment = serve.deployment(
        ServerReplica,
        name=SERVERS,
        ray_actor_options={"num_cpus": need.num_cpus, "memory": need.num_bytes},
        placement_group_bundles=[need.bundle],
        max_ongoing_requests=MAX_OPEN,
        max_constructor_retry_count=1,
        health_check_period_s=2,
        request_router_config=RequestRouterConfig(request_router_class=PromptRouter),
        graceful_shutdown_timeout_s=settings.shutdown_timeout + DRAIN_MARGIN_S,
        **number,
    )
    return deployment.bind(plan.program, plan.given, key, num_places, settings.shutdown_timeout)


def build(args: Mapping[str, Any]) -> serve.Application:
    """Return the application for settings of `neuronserve serve`. Raises StartError."""
    return routed(plan_of(args))


def routed(plan: Plan) -> serve.Application:
    """Return servers behind a router of Serve's own HTTP proxies."""
    deployment = serve.deployment(
        serve.ingress()(RouterReplica),
        name=ROUTER,
        ray_actor_options={"num_cpus": 0, "resources": HEAD_NODE},
        max_ongoing_requests=MAX_OPEN,
        graceful_shutdown_timeout_s=plan.settings.shutdown_timeout + DRAIN_MARGIN_S,
    )
    return deployment.bind(router_config(plan.settings, ()), servers_of(plan))


def scaled(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas for the load that they measure: the policy of `auto`."""
    load = context.aggregated_metrics or {}
    busy, queued = (sum(load.get(name, {}).values()) for name in (BUSY, QUEUED))
    if not load.get(BUSY):
        return context.target_num_replicas, {}
    wanted = ceil(busy / MOST_BUSY + queued / QUEUED_TOKENS)
    return min(max(wanted, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas), {}


class RouterReplica:
    """A router behind Serve's HTTP proxies, which sends requests to the servers' own ports."""

    def __init__(self, config: RouteConfig, servers: DeploymentHandle[ServerReplica]) -> None:
        self._config, self._servers, self._fleet = config, servers, Fleet(config)
        self._app = build_app(config, Proxy(config, self._fleet))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:  # uvicorn takes a method for older ASGI
            await self._answer(scope, receive, send)

        return app

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._app(scope, receive, _in_batches(send))
            return
        assert scope["type"] == "lifespan"
        await receive()
        running = asyncio.create_task(self._fleet.run())
        follow(self._servers, self._fleet.follow)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        running.cancel()
        await asyncio.gather(running, self._fleet.close(), return_exceptions=True)
        await send({"type": "lifespan.shutdown.complete"})


def _in_batches(send: Send) -> Send:
    """Return a `send` that passes the first part at once, and later ones together that come within BATCH_S.

    Serve has set the request's id, and adds it to the answer itself.
    """

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
        await send(message)
        if message.get("more_body"):
            await asyncio.sleep(BATCH_S)

    return sent
