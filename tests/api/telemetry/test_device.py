"""Modelled time and dollars as clients and scrapers see them: shown on request, and conserved."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from neuronserve.loadtests.bench import measure
from neuronserve.loadtests.cost import modelled
from neuronserve.loadtests.plan import make_plan
from neuronserve.server.api.keys.file import NO_KEY
from neuronserve.server.api.telemetry.device_account import DeviceAccount, KeyAccount
from neuronserve.server.api.telemetry.stats_log import INTERVAL_S, PaceLog
from neuronserve.server.clock import NS, ManualClock
from neuronserve.server.cost.charge_rate import ChargeRate
from neuronserve.server.device.catalog import instance
from neuronserve.server.link.messages import Tokens
from neuronserve.server.types import Charge, DeviceStep, TokenEvent
from tests.api.serving import MAX_MODEL_LEN, Server, running_server
from tests.api.telemetry.scraping import Scrape, scrape
from tests.api.telemetry.test_watch import report
from tests.cost.pricing import small_pricer
from tests.loadtests.driving import scenario_at

ASK = {"X-Neuronserve-Usage": "true"}
BODY = {"prompt": "a" * 40, "max_tokens": 9, "ignore_eos": True}
PRICE = 0.7582  # inf2.xlarge on demand; one of its two cores is used


@pytest.fixture(scope="module")
def keyed(checkpoint: Path) -> Iterator[Server]:
    with running_server(
        checkpoint, "--api-key", "k1", "--api-key", "k2", "--max-num-seqs", "4", "--public-paths", "/metrics"
    ) as server:
        yield server


def ask(server: Server, key: str = "k1", **changes: object) -> httpx.Response:
    headers = {**ASK, "Authorization": f"Bearer {key}"}
    return httpx.post(server.url + "/v1/completions", json={**BODY, **changes}, headers=headers, timeout=30)


def test_usage_says_what_the_request_took_and_only_when_asked(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        options = {"model": "fake", "prompt": "u" * 40, "max_tokens": 9, "extra_body": {"ignore_eos": True}}
        silent = client.completions.create(**options).usage
        answer = client.completions.create(**{**options, "prompt": "v" * 40}, extra_headers=ASK)
        stream = client.completions.create(
            **{**options, "prompt": "w" * 40}, extra_headers=ASK, stream=True, stream_options={"include_usage": True}
        )
        last = list(stream)[-1].usage
    assert silent is not None
    assert silent.model_extra == {}
    pricer = small_pricer(64, MAX_MODEL_LEN)
    prefill_s, decode_s = pricer.prefill_ns(0, 40) / NS, 8 * pricer.decode_ns(40, 1) / NS
    for usage in (answer.usage, last):
        assert usage is not None
        ours = usage.neuronserve  # type: ignore[attr-defined]
        assert ours["prefill_device_seconds"] == pytest.approx(prefill_s)
        assert ours["decode_device_seconds"] == pytest.approx(decode_s)
        assert ours["device_seconds"] == pytest.approx(prefill_s + decode_s)
        assert ours["cost_usd"] == pytest.approx((prefill_s + decode_s) * PRICE / 3600 / 2)


@pytest.mark.slow
async def test_load_tests_ask_for_device_seconds_and_price_them(server: Server) -> None:
    scenario = scenario_at(server.url, price={"instance": "inf2.xlarge", "instance_share": 0.5})
    measurement = await measure(scenario, make_plan(scenario, 1), None, lambda _: None)
    seconds = [record.device_seconds for record in measurement.outcome.records]
    assert len(seconds) == 8
    assert all(seconds)
    account = modelled(measurement.outcome.records, 1.0, scenario.price, scenario.slo, measurement.rate)
    assert account["usd"] == pytest.approx(sum(filter(None, seconds)) * PRICE / 3600 / 2)


def test_what_no_measurement_stands_behind_is_marked(server: Server) -> None:
    usage = httpx.post(server.url + "/v1/completions", json=BODY, headers=ASK).json()["usage"]
    assert usage["neuronserve"]["is_extrapolated"], "the model is far smaller than any that was measured"


def test_choices_of_one_request_add_up(server: Server) -> None:
    one = httpx.post(server.url + "/v1/completions", json={**BODY, "cache_salt": "1"}, headers=ASK).json()
    two = httpx.post(server.url + "/v1/completions", json={**BODY, "cache_salt": "2", "n": 2}, headers=ASK).json()
    first, second = (answer["usage"]["neuronserve"]["device_seconds"] for answer in (one, two))
    assert first < second < 2.001 * first  # where they take steps of their own, each is rounded by itself


@pytest.mark.parametrize("value", ["yes", "device", "2"])
def test_a_header_that_says_neither_yes_nor_no_is_refused_by_name(server: Server, value: str) -> None:
    answer = httpx.post(server.url + "/v1/completions", json=BODY, headers={"X-Neuronserve-Usage": value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "X-Neuronserve-Usage"
    assert value in answer.json()["error"]["message"]


def test_what_requests_were_told_is_what_the_engine_was_busy_and_each_key_has_its_part(keyed: Server) -> None:
    before = scrape(keyed.url)
    told = {"1": 0.0, "2": 0.0}
    for i, key in enumerate(["k1", "k2", "k1"]):
        usage = ask(keyed, key, prompt=chr(97 + i) * (30 + 50 * i)).json()["usage"]
        told[key.removeprefix("k")] += usage["neuronserve"]["device_seconds"]
    seen = scrape(keyed.url)

    def grown(name: str, **labels: str) -> float:
        old = before.value(name, **labels) if before.has(name) else 0.0
        return seen.value(name, **labels) - old

    busy = grown("neuronserve:device_seconds_total", kind="prefill")
    busy += grown("neuronserve:device_seconds_total", kind="decode")
    assert busy == pytest.approx(sum(told.values()), rel=1e-9)
    for key, seconds in told.items():
        assert grown("neuronserve:request_device_seconds_total", api_key=key) == pytest.approx(seconds, rel=1e-9)
        usd = grown("neuronserve:request_cost_usd_total", api_key=key)
        assert usd == pytest.approx(seconds * PRICE / 3600 / 2, rel=1e-9)
    assert "k1" not in "".join(sample.labels.get("api_key", "") for sample in seen.samples)


def test_all_kinds_of_cost_are_the_instances_price_over_the_modelled_time(keyed: Server) -> None:
    ask(keyed)
    seen = scrape(keyed.url)
    times = {kind: seen.value("neuronserve:device_seconds_total", kind=kind) for kind in ("prefill", "decode", "idle")}
    for kind, seconds in times.items():
        assert seen.value("neuronserve:cost_usd_total", kind=kind) == pytest.approx(
            seconds * PRICE / 3600 / 2, rel=0.01 if kind == "idle" else 1e-9
        )
    assert seen.value("neuronserve:cost_usd_total") == pytest.approx(sum(times.values()) * PRICE / 3600, rel=0.01)
    assert times["idle"] > 0


def test_padding_is_told_by_kind(keyed: Server) -> None:
    before = scrape(keyed.url)
    ask(keyed, prompt="p" * 100)
    seen = scrape(keyed.url)
    asked, padding = (
        {kind: seen.value(name, kind=kind) - before.value(name, kind=kind) for kind in ("prefill", "decode")}
        for name in ("neuronserve:device_tokens_total", "neuronserve:device_padding_tokens_total")
    )
    assert asked == {"prefill": 100, "decode": 8}
    assert padding == {"prefill": 28, "decode": 3 * 8}
    fraction = seen.value("neuronserve:device_padding_fraction", kind="decode")
    assert fraction == pytest.approx(0.75)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "usd"),
    [(("--price-basis", "reserved"), 0.328), (("--usd-per-hour", "7.2"), 7.2), (("--device", "trn2.48xlarge"), None)],
)
def test_the_price_is_the_one_asked_for_or_nothing_is_said_in_dollars(
    checkpoint: Path, flags: tuple[str, ...], usd: float | None
) -> None:
    with running_server(checkpoint, *flags) as server:
        usage = ask(server).json()["usage"]["neuronserve"]
        seen = scrape(server.url)
    if usd is None:
        assert "cost_usd" not in usage
        assert not seen.has("neuronserve:cost_usd_total")
        assert not seen.has("neuronserve:request_cost_usd_total")
    else:
        assert usage["cost_usd"] == pytest.approx(usage["device_seconds"] * usd / 3600 / 2)
    assert seen.has("neuronserve:request_device_seconds_total")


# --- the parts, with a clock that is moved by hand


def turn(time: float = 0.0, events: tuple[TokenEvent, ...] = (), used: tuple[int, ...] = (), **step: int) -> Tokens:
    device = DeviceStep(**{"prefill_ns": 0, "decode_ns": 0, "idle_ns": 0, **step})
    return Tokens(list(events), report(time=time, device=device), [Charge(device_ns) for device_ns in used])


def test_idle_time_grows_while_nothing_is_open_and_never_falls() -> None:
    clock, open_requests = ManualClock(100.0), [0]
    account = DeviceAccount(clock, lambda: not open_requests[0])
    clock.advance(2.0)
    assert account.idle_ns == 2 * NS
    open_requests[0] = 1  # it is on its way; the engine will begin at 102.5
    clock.advance(0.25)
    assert account.idle_ns == 2 * NS
    account.record(turn(103.0, idle_ns=NS * 5 // 2, decode_ns=NS // 2))
    open_requests[0] = 0
    clock.advance(2.0)
    assert account.time_ns() == {"prefill": 0, "decode": NS // 2, "idle": NS * 15 // 4}


def test_dollars_of_all_kinds_add_up_to_the_instance_over_the_modelled_time() -> None:
    clock = ManualClock(0.0)
    account = DeviceAccount(clock, lambda: False)
    for i in range(1000):
        account.record(turn(float(i), prefill_ns=1_234_567 * (i % 7), decode_ns=3_000_001, idle_ns=17 * i))
    rate = ChargeRate.of(instance("inf2.24xlarge"), 8, "on_demand")
    total_usd = sum(account.time_ns().values()) / NS / 3600 * 6.49063
    assert sum(account.usd(rate).values()) == pytest.approx(total_usd, rel=1e-12)
    assert account.usd(rate)["unused_cores"] == pytest.approx(total_usd / 3, rel=1e-12)


def test_several_engines_share_an_instance_with_its_unused_cores() -> None:
    rate = ChargeRate.of(instance("inf2.48xlarge"), 8, "on_demand", count=(2, 1))
    assert 2 * (rate.share + rate.unused_share) == pytest.approx(1)
    assert rate.share == pytest.approx(8 / 24)


def test_a_key_is_charged_for_what_ran_on_after_its_answer() -> None:
    account = KeyAccount()
    account.open(["a"], "2")
    account.record(turn(events=(TokenEvent("a", 7, 0, 0.0), TokenEvent("b", 7, 0, 0.0)), used=(100, 5)))
    account.record(turn(events=(TokenEvent("a", 7, 1, 0.0),), used=(130,)))
    account.record(turn(events=(TokenEvent("a", None, 2, 0.0, "abort"),), used=(170,)))
    assert account.device_ns == {"2": 170, NO_KEY: 5}
    account.record(turn(events=(TokenEvent("a", 7, 0, 0.0),), used=(1,)))
    assert account.device_ns[NO_KEY] == 6, "an ended id belongs to nobody"


@pytest.mark.parametrize(("late_every", "num_lines"), [(4, 3), (0, 0), (100, 0)])
def test_a_host_that_is_too_slow_is_told_with_the_share_of_late_steps(
    caplog: pytest.LogCaptureFixture, late_every: int, num_lines: int
) -> None:
    watch = PaceLog()
    with caplog.at_level(logging.WARNING, "neuronserve.pace"):
        for i in range(1000):
            late_ns = 2_000_000 if late_every and i % late_every == 1 else 0
            watch.record(turn(i * INTERVAL_S / 400, late_ns=late_ns, lag_ns=late_ns // 2))
    assert len(caplog.messages) == num_lines
    for line, num_steps in zip(caplog.messages, (100, 400, 400), strict=False):
        assert f"25.0 % of the last {num_steps} steps were late, {num_steps / 4:.1f} ms were lost" in line


def test_a_paced_server_counts_its_steps(checkpoint: Path) -> None:
    with running_server(checkpoint, "--pace", "device") as server:
        usage = ask(server).json()["usage"]
        seen: Scrape = scrape(server.url)
    assert usage["neuronserve"]["device_seconds"] > 0
    assert seen.value("neuronserve:pace_steps_total") == seen.value("neuronserve:engine_step_seconds_count") == 9
    assert seen.value("neuronserve:pace_lag_seconds") >= 0
