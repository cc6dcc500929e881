"""The probe of an endpoint: it stays within its stated bound, and ends properly for any failure of the server."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from neuronserve.loadtests.errors import EndpointError, SpecError
from neuronserve.loadtests.mock_server import Fault, MockServer, Script
from neuronserve.loadtests.probe import SINGLE_OUTPUT, Probe, ProbeShape, ProbeStep
from neuronserve.loadtests.specs import EndpointSpec
from neuronserve.server.device.buckets import powers_of_two, smallest

SMALL = ProbeShape(max_model_len=256, max_num_seqs=4, repeats=2)


async def probed(script: Script, shape: ProbeShape = SMALL) -> tuple[list[tuple[str, dict[str, Any]]], MockServer]:
    async with MockServer(script) as server:
        return await Probe(shape).run(EndpointSpec(base_url=server.url), "key", lambda _: None), server


@pytest.mark.slow
async def test_it_asks_for_what_it_has_said_and_no_more() -> None:
    reports, server = await probed(Script(itl_s=0.0005))
    most, at_once, read, written = map(int, re.findall(r"\d+", Probe(SMALL).bound.replace(",", ""))[:4])
    bodies = [each.body for each in server.served if "max_tokens" in each.body]
    assert (len(bodies), at_once) == (most, 4)
    assert sum(len(body["prompt"]) for body in bodies) == read
    assert sum(body["max_tokens"] for body in bodies) == written
    assert len({tuple(body["prompt"]) for body in bodies}) == most  # no prompt is in a cache for another
    assert [name for name, _ in reports] == [step.name for step in Probe(SMALL).steps]
    assert all(report["completed"] > 0 and report["median_itl_ms"] > 0 for _, report in reports)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [("refuse", "http_429"), ("crash", "500"), ("not_http", "malformed"), ("too_few", "token"), ("no_token", "empty")],
)
async def test_a_request_that_fails_ends_it_with_the_reason(fault: Fault, complaint: str) -> None:
    with pytest.raises(EndpointError, match=complaint):
        await probed(Script(fault=lambda number: fault if number else None))


@pytest.mark.slow
async def test_what_is_not_done_in_time_is_left_out() -> None:
    begun: list[ProbeStep] = []  # the first step has time on a busy host, the second 0.3 s
    probe = Probe(SMALL, lambda: time.monotonic() + (SMALL.max_seconds - 0.3 if len(begun) == 2 else 0.0))
    async with MockServer(Script(itl_s=0.0005, fault=lambda number: "silent" if number > 2 else None)) as server:
        reports = await probe.run(EndpointSpec(base_url=server.url), "key", begun.append)
    assert [name for name, _ in reports] == [step.name for step in probe.steps[:1]]
    with pytest.raises(EndpointError, match="before its first step"):
        await probed(Script(fault=lambda _: "silent"), ProbeShape(256, 4, max_seconds=0.3))


@pytest.mark.parametrize("max_model_len", [17, 128, 130, 500, 4096, 131072])
@pytest.mark.parametrize("slots", [1, 2, 5, 64, 1024])
@pytest.mark.parametrize("engines", [1, 3])
def test_every_step_stays_in_one_bucket_and_fits(max_model_len: int, slots: int, engines: int) -> None:
    steps = Probe(ProbeShape(max_model_len, slots, engines)).steps
    buckets = powers_of_two(max_model_len)
    for step in steps:
        assert step.input_len >= 1
        assert step.input_len + step.output_len <= max_model_len
        last = smallest(buckets, step.input_len + step.output_len)
        assert smallest(buckets, step.input_len + 1) == last
    assert len({step.name for step in steps}) == len(steps)
    assert max(step.concurrency for step in steps) == max(1, slots * engines if slots * engines > 1 else 1)


def test_own_lengths_are_taken_if_they_fit() -> None:
    steps = Probe(ProbeShape(256, 1, input_lens=(200, 20, 200))).steps
    assert [step.input_len for step in steps] == [20, 200]
    with pytest.raises(SpecError, match=f"241: 240 tokens and {SINGLE_OUTPUT} more fit"):
        Probe(ProbeShape(256, 1, input_lens=(241,)))
    with pytest.raises(SpecError, match="max_model_len is 16"):
        Probe(ProbeShape(16, 1))
