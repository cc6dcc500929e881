"""Helpers that run a scenario against a scripted server in one event loop."""

from __future__ import annotations

from typing import Any

from neuronserve.loadtests.bench import Measurement, measure
from neuronserve.loadtests.mock_server import MockServer, Script
from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.records import RequestRecord
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.loadtests.specs import Scenario

Tree = dict[str, dict[str, Any]]


def scenario_at(url: str, **sections: dict[str, Any]) -> Scenario:
    """A small scenario: 8 requests of 5 tokens at once, no warm-up, unless `sections` say otherwise."""
    tree: Tree = {
        "endpoint": {"base_url": url, "request_timeout_s": 20.0},
        "dataset": {"num_prompts": 8, "random_input_len": 12, "random_output_len": 5},
        "run": {"num_warmups": 0, "max_lag_ms": 1e6},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return load_scenario(None, tree)


async def run_on(server: MockServer, **sections: dict[str, Any]) -> Measurement:
    """Measure the small scenario on a running mock."""
    scenario = scenario_at(server.url, **sections)
    return await measure(scenario, make_plan(scenario, scenario.run.seed), None, lambda _: None)


async def run_script(script: Script, **sections: dict[str, Any]) -> tuple[Measurement, MockServer]:
    """Measure the small scenario on a mock of its own."""
    async with MockServer(script) as server:
        return await run_on(server, **sections), server


def by_id(measurement: Measurement) -> dict[str, RequestRecord]:
    return {record.request_id: record for record in measurement.outcome.records}
