"""Routers over simulated replicas: prefixes found, open tokens of each replica, and waits, by number of routers.

`python -m benchmarks.routers`. Routers are the real Fleet of `neuronserve route` over the bytes of real requests;
replicas are the planner's engines in virtual time, so the same command prints the same figures.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.driver import Driver
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.records import Records
from neuronserve.planner.simulate.scheduled_engine import ScheduledEngine
from neuronserve.server.clock import NS
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import HostOfSteps, StepPricer
from neuronserve.server.cost.work import Runtime
from neuronserve.server.route.address import Address
from neuronserve.server.route.asked import Asked
from neuronserve.server.route.config import RouteConfig
from neuronserve.server.route.fleet import Fleet
from neuronserve.server.route.prompt import CHUNK_BYTES, CHUNK_TOKENS, Prompt, prompt_of
from neuronserve.server.scheduler.router import Router
from neuronserve.workload.workload import Workload

ANSWER_TOKENS = 150
SHARED = 4  # system prompts of 4 chunks
THINK_S = 20.0  # mean time between two turns


def conversations(num_users: int, num_turns: int, rate: float, seed: int = 1) -> Workload:
    """Return turns of users who begin at `rate` a second: each prompt extends the user's last one by 1 to 3 chunks."""
    random = np.random.default_rng(seed)
    begins = np.cumsum(random.exponential(1 / rate, num_users))
    turns: list[tuple[float, tuple[int, ...]]] = []
    for user, begin in enumerate(begins):
        said: tuple[int, ...] = tuple(-1 - (user % SHARED) * 4 - i for i in range(4))
        time_s = float(begin)
        for _ in range(num_turns):
            new = int(random.integers(1, 4))
            said += tuple(1000 * user + len(said) + i for i in range(new))
            turns.append((time_s, said))
            time_s += 5 + float(random.exponential(THINK_S))
    turns.sort()
    lengths = np.array([len(said) * CHUNK_TOKENS + 20 for _, said in turns])
    arrivals = np.array([round(time_s * NS) for time_s, _ in turns])
    answers = np.full(len(turns), ANSWER_TOKENS)
    return Workload("talk", arrivals, lengths, answers, tuple(said for _, said in turns), CHUNK_TOKENS)


def body_of(said: Sequence[int]) -> bytes:
    """Return a request of a conversation whose chunks are named."""
    contents = [f"{name}:".ljust(CHUNK_BYTES - 40, "x") for name in said]
    messages = [{"role": "user", "content": each} for each in contents]
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


@dataclass(frozen=True)
class Deployment:
    """Replicas of Llama 1B on inf2.xlarge, and routers in front of them."""

    workload: Workload
    num_replicas: int
    num_routers: int = 1
    num_blocks: int | None = None  # of each replica; None = what its memory holds

    @cached_property
    def options(self) -> SimulationOptions:
        """The replica."""
        shape = resolve_shape("llama-1b")
        return SimulationOptions(
            shape, "inf2.xlarge", self.workload, 2, max_model_len=8192, max_num_seqs=16, num_blocks=self.num_blocks
        )

    def engines(self, records: Records) -> list[ScheduledEngine]:
        """Return idle replicas."""
        options = self.options
        stack = options.serving_stack
        runtime = Runtime(options.quantization_dtype, is_continuous=stack.is_continuous, sdk=options.sdk)
        model = CostModel.of(options.model, options.device, options.tensor_parallel_size, runtime)
        buckets = options.compiled_prompts, options.compiled_contexts
        pricer = StepPricer(model, options.max_num_seqs, *buckets, HostOfSteps.of(stack, model))
        args = options.scheduler, options.resolve_cache(), pricer, self.workload, records
        return [ScheduledEngine(*args) for _ in range(self.num_replicas)]


@dataclass
class Figures:
    """Figures of one deployment."""

    hit_rate: float  # of the prompts' tokens
    spread: float  # largest of the replicas' mean open tokens, over their mean
    ttft_p99_s: float


class Routed:
    """Balancer of the simulator: each request comes to one of several routers, and its router knows of no other one."""

    def __init__(self, fleets: Sequence[Fleet], engines: Sequence[ScheduledEngine], workload: Workload) -> None:
        self._fleets, self._engines = fleets, engines
        self._router_of = np.random.default_rng(7).integers(0, len(fleets), len(workload))
        self._prompts: list[Prompt] = [prompt_of(body_of(said)) for said in workload.prefixes or ()]
        self._placed: dict[int, int] = {}
        self._open = np.zeros(len(engines))
        self.sums, self._last_ns = np.zeros(len(engines)), 0  # token-nanoseconds of each replica
        for engine in engines:
            engine.is_step_by_step, engine.router = True, cast(Router, self)

    def open(self, number: int) -> None:
        """Do nothing: the fleets know their replicas."""

    close = open

    def choose(self, index: int, now_ns: int) -> int:
        """Have the request's router place it."""
        self.sums += self._open * (now_ns - self._last_ns)
        self._last_ns = now_ns
        name, path = f"{index:09d}", "/v1/chat/completions"
        asked = Asked("POST", path, path.encode(), [], b"", name, prompt=self._prompts[index])
        placing = self._fleets[self._router_of[index]].place(name, asked)
        try:
            placing.send(None)
        except StopIteration as done:
            self._placed[index] = chosen = int(done.value.number)
            self._open[chosen] += self._prompts[index].num_tokens
            return chosen
        raise AssertionError("no replica is up")

    def generated(self, name: str, count: int = 1) -> None:
        """Count tokens of a request's stream."""
        self._open[self._placed[int(name)]] += count
        self._fleets[self._router_of[int(name)]].ledger.generated(name, count)

    def end(self, name: str) -> None:
        """Count the end of a request."""
        index = int(name)
        self._open[self._placed[index]] -= self._prompts[index].num_tokens + ANSWER_TOKENS
        self._fleets[self._router_of[index]].ledger.end(name)

    def refused(self, index: int) -> None:
        """Fail: the queues are long enough for all."""
        raise AssertionError(f"request {index} was refused")

    def loaded(self, number: int, num_open: int) -> None:
        """Do nothing: the ledgers count."""


async def served(deployment: Deployment) -> Figures:
    """Serve the workload and return the figures."""
    workload = deployment.workload
    records = Records(len(workload))
    engines = deployment.engines(records)
    with tempfile.TemporaryDirectory() as directory:
        config = RouteConfig(tuple(Address(path=f"{directory}/{i}") for i in range(deployment.num_replicas)))
        fleets = [Fleet(config) for _ in range(deployment.num_routers)]
        finding = [asyncio.create_task(fleet.run()) for fleet in fleets]
        while any(len(fleet.replicas) < deployment.num_replicas for fleet in fleets):
            await asyncio.sleep(0)
        for replica in (each for fleet in fleets for each in fleet.replicas):
            replica.is_up = True
            replica.changed(replica)
        routed = Routed(fleets, engines, workload)
        options = deployment.options
        Driver(engines, workload, records, options.scheduler, options.resolve_cache(), routed).run()
        for task in finding:
            task.cancel()
        await asyncio.gather(*(fleet.close() for fleet in fleets))
    ttft_s = (np.array(records.first_token_ns) - np.array(records.sent_ns)) / NS
    mean_open = routed.sums / routed.sums.mean()
    hits = np.array(records.num_cached).sum() / workload.input_len.sum()
    return Figures(float(hits), float(mean_open.max()), float(np.quantile(ttft_s, 0.99)))


def main() -> None:
    """Print a row for each deployment."""
    talk = conversations(200, 6, rate=4.0)
    cases = {
        "1 replica": Deployment(talk.at_speed(0.25), 1),
        **{f"4 replicas, {count} router(s)": Deployment(talk, 4, count) for count in (1, 16)},
        **{f"16 replicas, {count} router(s)": Deployment(talk.at_speed(4), 16, count) for count in (1, 16)},
    }
    print("deployment | hit rate | max/mean open tokens | TTFT p99")
    for name, case in cases.items():
        each = asyncio.run(served(case))
        print(f"{name} | {each.hit_rate:.3f} | {each.spread:.2f} | {each.ttft_p99_s:.2f} s", flush=True)


if __name__ == "__main__":
    main()
