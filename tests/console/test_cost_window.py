"""Conservation: the price of the instances over a window of wall clock is divided without a rest, whoever is slow."""

from __future__ import annotations

import pytest

from neuronserve.console.cost_window import CostWindow
from neuronserve.server.api.telemetry.device_account import DeviceAccount
from neuronserve.server.clock import NS
from neuronserve.server.cost.charge_rate import ChargeRate
from neuronserve.server.cost.timeline import MAX_CARRY_NS
from neuronserve.server.device.catalog import instance
from tests.engine.test_metered_runner import DECODE_S, Engine, request


@pytest.mark.parametrize(
    ("is_paced", "step_s", "num_requests"),
    [
        pytest.param(False, 0.0, 0, id="idle"),
        pytest.param(False, 0.25, 2, id="idle, then a slow host"),
        pytest.param(False, 0.25, 40, id="saturated by a slow host"),
        pytest.param(False, DECODE_S / 4, 40, id="a host faster than the accelerator"),
        pytest.param(True, DECODE_S / 4, 40, id="paced"),
        pytest.param(True, DECODE_S * 4, 40, id="paced by a slow host"),
    ],
)
def test_price_times_wall_clock_is_steps_idle_time_host_and_unassigned_cores(
    is_paced: bool, step_s: float, num_requests: int
) -> None:
    engine = Engine(is_paced=is_paced, step_s=step_s)
    account = DeviceAccount(engine.clock, lambda: not engine.loop._scheduler.has_work)
    engine.run(*((0.5, request(f"r{i}", salt=i)) for i in range(num_requests)), until=5.0)
    for tokens in engine.outbox.tokens:
        account.record(tokens)
    rate = ChargeRate.of(instance("inf2.48xlarge"), 8, "on_demand", count=(2, 1))
    window = CostWindow(rate, account.wall_ns, sum(account.busy_ns.values()), account.idle_ns, 1000)
    found, steps = window.as_json(), engine.outbox.steps
    parts = [found[f"{part}_usd"] for part in ("busy", "idle", "host", "unused_cores")]
    wall_s = engine.clock.now() - 1000.0
    assert found["usd"] == pytest.approx(12.98127 / 2 * wall_s / 3600)  # half of the instance is this engine's
    assert sum(parts) == pytest.approx(found["usd"])  # type: ignore[arg-type]
    assert found["usd_per_million_tokens"] == pytest.approx(1000 * found["usd"])  # type: ignore[operator]
    lost_ns = sum(step.lag_ns for step in steps) if is_paced else round(len(steps) * step_s * NS) - window.busy_ns
    assert window.host_ns == pytest.approx(lost_ns, abs=2 * len(steps) + 2 + is_paced * (MAX_CARRY_NS + step_s * NS))
    assert (window.host_ns > 0.1 * window.wall_ns) == ("limited by this host" in str(found["remark"]))
