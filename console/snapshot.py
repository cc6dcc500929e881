"""Records for pages: facts of the server, its current state, and the owner of each block. Plain values for JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from ..server import __version__
from ..server.api.endpoints.inventory import inventory
from ..server.api.service import Service
from ..server.api.telemetry.lifecycle import RequestLife
from ..server.device.catalog import instance
from ..server.device.topology import neighbours
from ..server.errors import RequestError
from ..server.link.messages import BlockMap, EngineInfo, Tokens
from .history import HOUR_S, RequestHistory, StepHistory, Totals, TotalsHistory, request_row

MAX_OPEN = 256  # requests in one record; the others are only counted
MINUTE_S = 60.0


class Recorder:
    """Observer of a service's engines from the start, which makes the records."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.requests = RequestHistory()
        self._steps = [StepHistory() for _ in service.engine.clients]
        self._num_output_tokens = 0
        self._totals: TotalsHistory | None = None  # begins when the engines are ready
        for rank, client in enumerate(service.engine.clients):
            client.observe(partial(self._record, rank))
        service.telemetry.at_request_end.append(self._ended)

    def _record(self, rank: int, tokens: Tokens) -> None:
        self._steps[rank].add(tokens.report)
        self._num_output_tokens += tokens.num_generated
        if self._totals is None or self._totals.is_due(tokens.report.time):
            self._sample_soon()

    def _ended(self, life: RequestLife) -> None:
        self.requests.add(life, self.service.served.rate)
        self._sample_soon()

    def _sample_soon(self) -> None:
        """Take a sample when all observers have seen the present turn of the engine."""
        asyncio.get_running_loop().call_soon(self._sample)

    def _sample(self) -> tuple[Totals, TotalsHistory | None]:
        """Return the totals up to now, and their history with them."""
        now, accounts = self.totals(), self.service.telemetry.accounts
        if accounts:
            if self._totals is None:
                self._totals = TotalsHistory(Totals(accounts[0].ready_s, 0, 0, 0, 0, 0, 0))
            self._totals.add(now)
        return now, self._totals

    def totals(self) -> Totals:
        """Return the sums up to now."""
        service = self.service
        accounts = service.telemetry.accounts
        reports = [client.report for client in service.engine.clients if client.report is not None]
        return Totals(
            time_s=service.clock.now(),
            wall_ns=sum(account.wall_ns for account in accounts),
            busy_ns=sum(sum(account.busy_ns.values()) for account in accounts),
            idle_ns=sum(account.idle_ns for account in accounts),
            num_prompt_tokens=sum(account.num_tokens["prefill"] for account in accounts),
            num_cached_tokens=sum(report.prefix_hits for report in reports),
            num_output_tokens=self._num_output_tokens,
        )

    def server(self) -> dict[str, Any]:
        """Return the facts of the server; without `inventory` while it does not serve."""
        service = self.service
        infos = service.engine.infos
        try:
            found = inventory(service)
        except RequestError:
            found = None
        return {
            "type": "server",
            "version": __version__,
            "phase": service.phase,
            "models": [*service.config.model_names, *service.adapters.names],
            "has_admin_key": service.keys.has_operators,
            "inventory": found,
            "part": _part(infos[0]) if infos else None,
            "cores": [core for rank, info in enumerate(infos) for core in _cores(rank, info)],
        }

    def live(self, from_bin: int, num_ended: int) -> dict[str, Any]:
        """Return the state: steps from bin `from_bin` on, and requests that ended after the first `num_ended`."""
        service = self.service
        now, history = self._sample()
        open_requests = service.model.requests.open_requests if service.phase not in NOT_SERVING else []
        rows = [request_row(life, service.model.rate) for life in open_requests[:MAX_OPEN]]
        return {
            "type": "live",
            "now": now.time_s,
            "phase": service.phase,
            "engines": [self._engine(rank) for rank in range(len(service.engine.clients))],
            "bins": [each.row(rank) for rank, steps in enumerate(self._steps) for each in steps.since(from_bin)],
            "open": rows,
            "num_open": len(open_requests),
            "ended": self.requests.since(num_ended),
            "num_ended": self.requests.num_ended,
            "cost": None if history is None or service.phase in NOT_SERVING else self._cost(now, history),
        }

    def _engine(self, rank: int) -> dict[str, Any]:
        service = self.service
        client = service.engine.clients[rank]
        report = client.report
        found: dict[str, Any] = {"state": client.state, "open": client.num_open}
        if service.telemetry.accounts:
            account = service.telemetry.accounts[rank]
            found |= {"time_ns": account.time_ns(), "flops": account.flops, "hbm_bytes": account.hbm_bytes}
            found |= {"tokens": account.num_tokens, "padding": account.num_padding}
        if report is not None:
            names = ("num_running", "num_waiting", "num_free_blocks", "num_blocks", "prefix_queries", "prefix_hits")
            found |= {name: getattr(report, name) for name in names}
        return found

    def _cost(self, now: Totals, history: TotalsHistory) -> dict[str, Any]:
        windows = {"minute": MINUTE_S, "hour": HOUR_S}
        rate = self.service.model.rate
        return {name: now.since(history.at(now.time_s - seconds)).cost(rate) for name, seconds in windows.items()}


NOT_SERVING = frozenset({"loading", "draining", "dead"})


def blocks_record(maps: Sequence[BlockMap]) -> dict[str, Any]:
    """Return the blocks of each engine."""
    return {"type": "blocks", "engines": [{"runs": each.runs, "owners": each.owners} for each in maps]}


def _part(info: EngineInfo) -> dict[str, Any]:
    part = instance(info.device)
    chip = part.chip
    return {
        "name": part.name,
        "num_chips": part.num_chips,
        "cores_per_chip": chip.cores_per_chip,
        "core_name": chip.core_name,
        "chip": chip.name,
        "lnc": chip.lnc,
        "memory_gib": chip.memory_gib,
        "bandwidth_gb_s": chip.bandwidth_gb_s,
        "tflops": chip.tflops.get(info.dtype),
        "link": None if part.link is None else asdict(part.link),
        "neighbours": [list(neighbours(part, i)) for i in range(part.num_chips)],
    }


def _cores(rank: int, info: EngineInfo) -> list[dict[str, Any]]:
    ids = info.core_ids or range(rank * len(info.memory), (rank + 1) * len(info.memory))
    return [
        {"id": core, "engine": rank, "used": memory.used, "budget": memory.budget, "capacity": memory.capacity}
        for core, memory in zip(ids, info.memory, strict=True)
    ]
