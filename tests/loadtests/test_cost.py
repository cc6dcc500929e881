"""Cost per token: the formula, its sum, and the two separate accounts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.loadtests import cost
from neuronserve.loadtests.cost import TokenCounts, per_million
from neuronserve.loadtests.errors import SpecError
from neuronserve.loadtests.inventory import Device, InstancePrice, Inventory, read_inventory
from neuronserve.loadtests.rate import HourRate, rate_of
from neuronserve.loadtests.records import RequestRecord
from neuronserve.loadtests.specs import PriceSpec
from neuronserve.workload.slo import Slo

NO_SLO = Slo()
COUNTS = st.integers(0, 10**7)


def record(prompt: int = 100, output: int = 50, device: float | None = None, **changes: object) -> RequestRecord:
    fields: dict[str, object] = {"request_id": "r", "session": 0, "turn": 0, "intended_s": 0.0, "sent_s": 0.0}
    fields |= {"prompt_tokens": prompt, "output_tokens": output, "device_seconds": device, "ttft_s": 0.1}
    return RequestRecord(**{**fields, **changes})  # type: ignore[arg-type]


def modelled(records: list[RequestRecord], duration_s: float, spec: PriceSpec, slo: Slo = NO_SLO) -> cost.Account:
    """The account by flags alone."""
    return cost.modelled(records, duration_s, spec, slo, rate_of(spec, None))


def measured(records: list[RequestRecord], duration_s: float, spec: PriceSpec) -> cost.Account:
    """The account by flags alone."""
    return cost.measured(records, duration_s, spec, NO_SLO, rate_of(spec, None))


@given(
    usd=st.floats(0.001, 1e4),
    tokens=st.tuples(COUNTS, COUNTS, COUNTS),
    ratio=st.floats(0.1, 20),
    cached_ratio=st.floats(0, 1),
)
def test_the_parts_add_up_to_the_whole(
    usd: float, tokens: tuple[int, int, int], ratio: float, cached_ratio: float
) -> None:
    counts = TokenCounts(*tokens, None)
    spec = PriceSpec(output_price_ratio=ratio, cached_price_ratio=cached_ratio)
    prices = per_million(usd, counts, spec)
    names = ("input", "cached_input", "output")
    if prices["cost_per_million_input_tokens_usd"] is None:
        assert counts.new_input + cached_ratio * counts.cached_input + counts.output == 0
        return
    paid = sum((prices[f"cost_per_million_{n}_tokens_usd"] or 0) * c / 1e6 for n, c in zip(names, tokens, strict=True))
    assert paid == pytest.approx(usd)


def test_measured_cost_by_hand() -> None:
    """$3.60 an hour for 100 s is $0.10; 1000 in and 500 out at 1:4 are 3000 units."""
    account = measured([record(1000, 500)], 100.0, PriceSpec(price_per_hour=3.6))
    assert account["usd"] == pytest.approx(0.1)
    assert account["cost_per_million_input_tokens_usd"] == pytest.approx(0.1 / 3000 * 1e6)
    assert account["cost_per_million_output_tokens_usd"] == pytest.approx(4 * 0.1 / 3000 * 1e6)
    assert account["cost_per_million_total_tokens_usd"] == pytest.approx(0.1 / 1500 * 1e6)
    assert account["cost_per_million_tokens_all_cost_on_output_usd"] == pytest.approx(0.1 / 500 * 1e6)


def test_modelled_cost_by_hand_at_both_prices_of_the_catalogue() -> None:
    """10 device seconds of an inf2.xlarge, $0.7582 an hour on demand and $0.328 reserved."""
    records = [record(1000, 500, device=6.0), record(1000, 500, device=4.0)]
    account = modelled(records, 2.0, PriceSpec(instance="inf2.xlarge"), NO_SLO)
    usd = 0.7582 * 10 / 3600
    assert account["usd"] == pytest.approx(usd)
    assert account["cost_per_million_tokens_all_cost_on_output_usd"] == pytest.approx(usd / 1000 * 1e6)
    reserved = account["by_price_basis"]["reserved"]
    assert reserved["cost_per_million_output_tokens_usd"] == pytest.approx(
        account["cost_per_million_output_tokens_usd"] * 0.328 / 0.7582
    )
    assert account["device_busy_fraction_of_wall"] == 5.0
    assert "on_demand" in account["basis"]


def test_wall_time_never_enters_the_modelled_account() -> None:
    records = [record(device=1.0)]
    spec = PriceSpec(instance="inf2.xlarge", price_per_hour=100.0)
    fast, slow = (modelled(records, seconds, spec, NO_SLO) for seconds in (1.0, 1000.0))
    assert fast["usd"] == slow["usd"]


def test_device_time_never_enters_the_measured_account() -> None:
    spec = PriceSpec(instance="inf2.xlarge", price_per_hour=1.0)
    accounts = [measured([record(device=device)], 10.0, spec) for device in (None, 1.0, 99.0)]
    assert accounts[0] == accounts[1] == accounts[2]


def test_modelled_cost_is_not_made_up_when_the_server_is_silent() -> None:
    account = modelled([record(device=1.0), record()], 1.0, PriceSpec(instance="inf2.xlarge"), NO_SLO)
    assert account == {
        "available": False,
        "reason": "the server gave no device seconds for 1 of 2 completed requests",
    }
    assert not modelled([record(device=1.0)], 1.0, PriceSpec(), NO_SLO)["available"]
    assert not measured([record()], 1.0, PriceSpec())["available"]


def test_failed_requests_cost_and_yield_no_token() -> None:
    spec = PriceSpec(instance="inf2.xlarge")
    alone = modelled([record(device=1.0)], 1.0, spec, NO_SLO)
    failed = record(device=1.0, failure="token_count")
    both = modelled([record(device=1.0), failed], 1.0, spec, NO_SLO)
    name = "cost_per_million_output_tokens_usd"
    assert both[name] == pytest.approx(2 * alone[name])


def test_good_tokens_cost_more_than_all_tokens() -> None:
    slo = Slo(ttft_ms=200.0)
    records = [record(), record(ttft_s=5.0, end_s=6.0)]
    account = cost.measured(records, 1.0, PriceSpec(price_per_hour=1.0), slo, "")
    name = "cost_per_million_tokens_all_cost_on_output_usd"
    assert account["cost_per_million_good_output_tokens_usd"] == pytest.approx(2 * account[name])


def test_half_the_utilization_is_twice_the_cost_and_half_the_instance_is_half() -> None:
    records = [record(device=1.0)]

    def usd(**changes: float) -> float:
        return modelled(records, 1.0, PriceSpec(instance="inf2.xlarge", **changes), NO_SLO)["usd"]  # type: ignore[arg-type]

    assert usd(utilization=0.5) == pytest.approx(2 * usd())
    assert usd(instance_share=0.5) == pytest.approx(0.5 * usd())


def test_the_fit_finds_the_price_ratio_the_device_has() -> None:
    shapes = [(10 * i % 170 + 20, 7 * i % 50 + 5) for i in range(20)]
    records = [record(a, b, device=0.001 * a + 0.006 * b) for a, b in shapes]
    assert cost.fitted_ratio(records) == pytest.approx(6.0)


def test_the_fit_is_silent_where_it_means_nothing() -> None:
    assert cost.fitted_ratio([record(100, 50, device=1.0)] * 20) is None
    assert cost.fitted_ratio([record(100 + i, 50, device=1.0) for i in range(3)]) is None


def test_prices_of_a_catalogue_file_and_of_a_discount(tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text(
        '[[prices]]\ninstance = "inf2.xlarge"\nregion = "eu-north-1"\non_demand_usd = 3.6\n'
        'source = "invoice"\ndate = 2026-09-01\n'
    )
    spec = PriceSpec(instance="inf2.xlarge", catalog=str(file), region="eu-north-1")
    account = modelled([record(1000, 500, device=10.0)], 2.0, spec, NO_SLO)
    assert account["usd"] == pytest.approx(0.01)
    assert "eu-north-1 of 2026-09-01 (invoice)" in account["basis"]
    assert account["by_price_basis"]["reserved"] is None
    spot = PriceSpec(instance="inf2.xlarge", price_basis="spot", spot_discount=0.75)
    assert modelled([record(device=1.0)], 1.0, spot, NO_SLO)["price_per_hour_usd"] == pytest.approx(0.7582 / 4)
    with pytest.raises(SpecError, match=r"region 'mars-1': known are .*eu-north-1, .*us-east-1"):
        rate_of(PriceSpec(instance="inf2.xlarge", catalog=str(file), region="mars-1"), None)


def test_an_unknown_instance_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"no device 'inf2.xlrge'.*inf2.xlarge"):
        rate_of(PriceSpec(instance="inf2.xlrge"), None)


def test_a_price_the_catalogue_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match=r"no on_demand price of trn2\.48xlarge in us-east-1"):
        modelled([record(device=1.0)], 1.0, PriceSpec(instance="trn2.48xlarge"), NO_SLO)


# --- the price that a server says of itself

PAID = InstancePrice(7.2, "reserved", "2026-01-02", "sheet; Linux, us-east-1")


def inventory(instance: str = "inf2.48xlarge", price: InstancePrice = PAID) -> Inventory:
    return Inventory(Device(instance, 24, 8), price)


def test_without_flags_the_servers_own_price_and_share_are_used() -> None:
    """8 of 24 cores of $7.20 an hour for 10 s."""
    rate = rate_of(PriceSpec(), inventory())
    account = cost.modelled([record(1000, 500, device=10.0)], 2.0, PriceSpec(), NO_SLO, rate)
    assert account["usd"] == pytest.approx(7.2 / 3 * 10 / 3600)
    assert account["basis"] == (
        "modelled device time on inf2.48xlarge, reserved $7.2/h by the server's inventory of 2026-01-02 "
        "(sheet; Linux, us-east-1)"
    )
    on_demand = account["by_price_basis"]["on_demand"]
    ratio = on_demand["price_per_hour_usd"] / 7.2
    name = "cost_per_million_output_tokens_usd"
    assert on_demand[name] == pytest.approx(ratio * account[name])


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"instance": "inf2.48xlarge"}, ("inf2.48xlarge", "on_demand", 12.98127, 1 / 3)),
        ({"instance": "inf2.xlarge"}, ("inf2.xlarge", "on_demand", 0.7582, 1.0)),
        ({"price_basis": "on_demand"}, ("inf2.48xlarge", "on_demand", 12.98127, 1 / 3)),
        ({"instance_share": 0.5}, ("inf2.48xlarge", "reserved", 7.2, 0.5)),
        ({"price_basis": "spot", "spot_discount": 0.5}, ("inf2.48xlarge", "spot", 12.98127 / 2, 1 / 3)),
    ],
)
def test_flags_come_before_what_the_server_says(
    flags: dict[str, object], expected: tuple[str, str, float, float]
) -> None:
    rate = rate_of(PriceSpec(**flags), inventory())  # type: ignore[arg-type]
    assert isinstance(rate, HourRate)
    assert (rate.instance, rate.basis) == expected[:2]
    assert (rate.usd_per_hour, rate.share) == pytest.approx(expected[2:])


def test_wall_time_is_paid_at_the_servers_price_unless_another_is_given() -> None:
    """Two instances of $7.20 an hour for 10 s: what the console and /metrics count in the same window."""
    two = Inventory(Device("inf2.48xlarge", 24, 8, 2), PAID)
    account = cost.measured([record(1000, 500)], 10.0, PriceSpec(), NO_SLO, rate_of(PriceSpec(), two))
    assert account["usd"] == pytest.approx(2 * 7.2 * 10 / 3600)
    assert account["price_per_hour_usd"] == pytest.approx(14.4)
    assert account["cost_per_million_total_tokens_usd"] == pytest.approx(0.04 / 1500 * 1e6)
    assert "2 x inf2.48xlarge" in account["basis"]
    given = PriceSpec(price_per_hour=1.0)
    assert cost.measured([record()], 36.0, given, NO_SLO, rate_of(given, two))["usd"] == pytest.approx(0.01)


def test_an_instance_of_the_servers_own_catalogue_has_its_own_price_only() -> None:
    rate = rate_of(PriceSpec(), inventory("inf9.large"))
    account = cost.modelled([record(device=1.0)], 1.0, PriceSpec(), NO_SLO, rate)
    assert account["usd"] > 0
    assert set(account["by_price_basis"].values()) == {None}
    with pytest.raises(SpecError, match=r"no device 'inf9.large'"):
        rate_of(PriceSpec(price_basis="reserved"), inventory("inf9.large"))


def test_a_server_that_knows_no_price_says_why() -> None:
    unknown = InstancePrice(None, "on_demand", None, "no price in us-east-1 is known")
    rate = rate_of(PriceSpec(), inventory("trn2.48xlarge", unknown))
    assert rate == "the server has no price of trn2.48xlarge: no price in us-east-1 is known"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"\xff",
        b"[]",
        b"{}",
        b'{"device": null, "price": null}',
        b'{"device": {"instance": "x", "num_cores": 0, "tensor_parallel_size": 1}, "price": {"usd_per_hour": 1, '
        b'"basis": "", "date": null, "source": ""}}',
    ],
)
def test_what_is_no_inventory_is_none(body: bytes) -> None:
    assert read_inventory(body) is None
