"""The comparison of plan, simulation and paced server, and that the two modelled sides agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.records import RequestRecord
from neuronserve.planner.plan.check import ServiceFigures, compared, simulation_of
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.clock import NS
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES
from tools.agreement_check import LIMIT, CheckedWorkload, measured, planned, serve_flags, simulated, verdict

SOME = ServiceFigures(0.02, 0.003, 1000.0, 0.1)
FIGURES = ["tpot_s", "ttft_s", "output_tokens_s", "usd_per_million_tokens"]
LONG_RUN = 3000  # over 360 requests, as a paced server gets, the TTFT of `tgi` is off by -13 to +16 % with the seed
# Six a second is 84 % of saturation for `tgi`: over five seeds its mean TTFT is promised 3 to 13 % too long.
WIDER_LIMITS = {("tgi", "ttft_s"): 0.15}


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACK_NAMES)
@pytest.mark.parametrize("rate", [2.0, 6.0])
def test_plan_and_simulation_of_the_default_model_agree(stack: StackName, rate: float) -> None:
    checked = CheckedWorkload(stack=stack, request_rate=rate, num_prompts=LONG_RUN)
    workload = checked.workload
    report, candidate = planned(checked, workload)
    found = compared(ServiceFigures.planned(report, candidate), simulated(report, candidate, workload))
    assert [one.name for one in found] == FIGURES
    for one in found:
        assert abs(one.error) <= WIDER_LIMITS.get((stack, one.name), LIMIT), found


def test_figures_of_clients_are_worked_out_as_those_of_a_simulation() -> None:
    checked = CheckedWorkload(num_prompts=50)
    workload = checked.workload
    report, candidate = planned(checked, workload)
    options = replace(simulation_of(report, candidate), workload=workload)
    seen = run_simulation(options).records
    records = [
        RequestRecord(
            str(index),
            index,
            0,
            seen.sent_ns[index] / NS,
            seen.sent_ns[index] / NS,
            end_s=seen.finish_ns[index] / NS,
            ttft_s=(seen.first_token_ns[index] - seen.sent_ns[index]) / NS,
            output_tokens=seen.num_output[index],
        )
        for index in reversed(range(50))
    ]
    failed = RequestRecord("failed", 50, 0, 0.0, 0.0, failure="timeout")
    run = cast(Any, type("Run", (), {"outcome": type("Outcome", (), {"records": [*records, failed]})}))
    found, expected = measured(run, report, options.hourly_usd), simulated(report, candidate, workload)
    for name in FIGURES:
        assert getattr(found, name) == pytest.approx(getattr(expected, name))


@pytest.mark.parametrize("name", FIGURES)
def test_one_figure_of_one_side_beyond_the_limit_is_no_agreement(name: str) -> None:
    near, far = (replace(SOME, **{name: getattr(SOME, name) * factor}) for factor in (1 + 0.9 * LIMIT, 1 + 1.2 * LIMIT))
    assert verdict({"plan": SOME, "simulate": SOME, "paced": near})[1]
    for side in ("plan", "simulate", "paced"):
        lines, is_kept = verdict({"plan": SOME, "simulate": SOME, "paced": SOME} | {side: far})
        assert not is_kept
        assert len(lines) == 1 + len(FIGURES)
        assert sum(f"{far_error(side):+.2%}" in line for line in lines) == 1


def far_error(side: str) -> float:
    """Error of the first pair; the difference is relative to the second value."""
    factor = 1 + 1.2 * LIMIT
    return factor - 1 if side == "plan" else 1 / factor - 1


def test_without_a_price_there_are_no_dollars_to_compare() -> None:
    free = replace(SOME, usd_per_million_tokens=None)
    lines, is_kept = verdict({"plan": free, "simulate": free})
    assert is_kept
    assert not any("$" in line for line in lines)


def test_the_server_is_started_as_planned() -> None:
    checked = CheckedWorkload(stack="tgi")
    _, candidate = planned(checked, checked.workload)
    flags = serve_flags(candidate, checked)
    asked = dict(zip(flags[::2], flags[1::2], strict=True))
    assert asked["--max-num-seqs"] == str(checked.slots) == str(candidate.batch)
    assert (asked["--pace"], asked["--stack"], asked["--max-model-len"]) == ("device", "tgi", "2048")


def test_requests_are_simulated_when_they_are_sent() -> None:
    checked = CheckedWorkload(seed=3)
    sent = make_plan(checked.scenario, checked.seed)
    assert sent.schedule.offsets == checked.workload.arrival_s.tolist()
