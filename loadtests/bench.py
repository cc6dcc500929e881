"""A measurement: contact the server, warm it up, and run. No file is written here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .client import Wire
from .driver import LoadRun, RequestFormat, RunOutcome, Schedule
from .endpoint import Endpoint, meet
from .errors import EndpointError
from .openai_api import BodyOptions
from .plan import WARMUP_CONCURRENCY, Plan
from .rate import HourRate, rate_of
from .records import RequestRecord
from .specs import Scenario

OnRecord = Callable[[RequestRecord], None]
OnRate = Callable[[HourRate | str], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A run with its scenario, plan, server and price of the device."""

    scenario: Scenario
    plan: Plan
    endpoint: Endpoint
    rate: HourRate | str  # or the reason why there is none
    outcome: RunOutcome


async def measure(
    scenario: Scenario, plan: Plan, api_key: str | None, on_record: OnRecord, on_rate: OnRate = lambda _: None
) -> Measurement:
    """Run the scenario's plan once. SIGINT and SIGTERM end it early. `on_rate` is called before the first record.

    Raises LoadTestError before the first measured request; after it there is always a measurement.
    """
    endpoint = await meet(scenario.endpoint, api_key)
    try:
        rate = rate_of(scenario.price, endpoint.inventory)
        on_rate(rate)
        wire = Wire(
            http=endpoint.http,
            path=endpoint.path,
            timeout_s=scenario.endpoint.request_timeout_s,
            is_exact=scenario.run.ignore_eos,
            origin=0.0,
        )
        request_format = _request_format(scenario, plan, endpoint)
        await _warm_up(wire, request_format, plan, on_record)
        run = LoadRun(wire, request_format, on_record)
        with _ends_early(run):
            outcome = await run.run(plan.dataset.sessions, plan.schedule)
    finally:
        await endpoint.http.close()
    return Measurement(scenario, plan, endpoint, rate, outcome)


async def _warm_up(wire: Wire, request_format: RequestFormat, plan: Plan, on_record: OnRecord) -> None:
    """Warm up. Raises EndpointError if no warm-up request is answered, as then all requests would fail."""
    if not plan.warmup:
        return
    warm = replace(request_format, request_id_prefix=f"{request_format.request_id_prefix}warmup-", phase="warmup")
    run = LoadRun(wire, warm, on_record)
    with _ends_early(run):
        outcome = await run.run(plan.warmup, Schedule(None, WARMUP_CONCURRENCY))
    if outcome.is_interrupted:
        raise EndpointError("interrupted while warming up: there is nothing to report")
    if not any(record.is_ok for record in outcome.records):
        first = outcome.records[0]
        raise EndpointError(f"no warm-up request was answered; the first failed with {first.failure}: {first.error}")


def _request_format(scenario: Scenario, plan: Plan, endpoint: Endpoint) -> RequestFormat:
    run = scenario.run
    options = BodyOptions(
        model=endpoint.model,
        ignore_eos=run.ignore_eos,
        temperature=run.temperature,
        # Later turns repeat the answers before them, so that a prefix cache can find them.
        return_token_ids=run.return_token_ids or any(len(session.turns) > 1 for session in plan.dataset.sessions),
        extra=scenario.endpoint.extra_body,
    )
    return RequestFormat(scenario.endpoint.backend, plan.vocabulary, options, run.request_id_prefix)


@contextlib.contextmanager
def _ends_early(run: LoadRun) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run instead of the process."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    with contextlib.suppress(ValueError, RuntimeError):  # only a main thread can
        for number in numbers:
            loop.add_signal_handler(number, run.interrupt)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            for number in numbers:
                loop.remove_signal_handler(number)
