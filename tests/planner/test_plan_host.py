"""Properties of an instance beside its chips: memory of its host, its region, and its logical cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronserve.planner.model_names import resolve_decoder
from neuronserve.planner.plan.check import simulation_of
from neuronserve.planner.plan.memory import checkpoint_bytes
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from neuronserve.planner.settings.plan import PlanSettings
from neuronserve.server.device.catalog import instance, instances
from neuronserve.server.errors import DeviceError, DeviceMemoryError

TIGHT = PlanOptions("llama-2-13b", 200, 50, 0.1, devices=("inf2.xlarge",), dtypes=("bfloat16",), max_batch=1)
ASKED = PlanOptions("llama-3.1-8b", 1000, 200, 1.0, max_batch=4, dtypes=("bfloat16",))


# -- memory of the host --------------------------------------------------------------------------------------------


def test_a_host_that_cannot_hold_one_copy_of_the_weights_is_left_out() -> None:
    with pytest.raises(DeviceMemoryError, match=r"loading reads 24.2 GiB of weights into the 16 GiB of the host"):
        plan(TIGHT)
    eight_bit = plan(replace(TIGHT, dtypes=("bfloat16", "int8")))
    assert {row.dtype for row in eight_bit.candidates} == {"int8"}
    assert any("--save-sharded-checkpoint" in entry.reason for entry in eight_bit.excluded)


def test_weights_sharded_elsewhere_need_no_host() -> None:
    report = plan(replace(TIGHT, save_sharded_checkpoint=True))
    assert {(row.device, row.tp) for row in report.candidates} == {("inf2.xlarge", 2)}
    assert not [note for note in report.notes if "sharded" in note]


def test_larger_hosts_of_the_same_chip_load_it() -> None:
    report = plan(replace(TIGHT, devices=("inf2.xlarge", "inf2.8xlarge")))
    assert {row.device for row in report.candidates} == {"inf2.8xlarge"}


def test_a_host_with_little_more_than_a_copy_is_warned_of() -> None:
    asked = replace(ASKED, model="qwen3-4b", dtypes=("bfloat16",), devices=("inf2.xlarge", "inf2.8xlarge"), max_batch=1)
    assert not any(row.running.blockers for row in plan(asked).candidates)
    unreported = replace(asked, model="qwen3-8b")  # of which no report is
    blocked = {row.device: row.running for row in plan(unreported).candidates}
    assert not blocked["inf2.8xlarge"].blockers
    (blocker,) = blocked["inf2.xlarge"].blockers
    assert "killed at 15.3 GB" in blocker
    sharded = plan(replace(unreported, save_sharded_checkpoint=True))
    assert not any(row.running.blockers for row in sharded.candidates)


def test_a_copy_has_the_bytes_of_the_type() -> None:
    model = resolve_decoder("llama-3.1-8b")
    assert (
        checkpoint_bytes(model, "bfloat16") == 2 * checkpoint_bytes(model, "int8") == pytest.approx(16.06e9, rel=0.01)
    )


# -- regions -------------------------------------------------------------------------------------------------------

REGIONS = ("us-east-1", "us-east-2", "ap-northeast-1")


def test_each_part_is_planned_where_it_is_cheapest() -> None:
    report = plan(replace(ASKED, regions=REGIONS))
    for row in report.candidates:
        usd = [part.usd("on_demand") for region in REGIONS for part in instances(region) if part.name == row.device]
        known = [each for each in usd if each is not None]
        price = row.at_rate["on_demand"]
        assert (price is None) == (not known)
        if price is not None:
            assert price.hourly_usd == pytest.approx(row.instances * min(known))
    assert {row.region for row in report.candidates if row.device == "trn2.48xlarge"} == {"us-east-2"}
    assert {row.region for row in report.candidates if row.device == "inf2.xlarge"} == {"us-east-1"}


def test_the_order_of_regions_decides_among_equals_alone() -> None:
    rows = plan(replace(ASKED, regions=("ap-northeast-1", "us-east-2"), devices=("inf2.xlarge",))).candidates
    assert {row.region for row in rows} == {"us-east-2"}


def test_notes_name_the_region_of_a_price_and_those_that_have_a_missing_one() -> None:
    notes = plan(replace(ASKED, regions=REGIONS)).notes
    assert any(note.startswith("on_demand prices: Linux, us-east-2, ") for note in notes)
    [missing] = [note for note in plan(replace(ASKED, devices=("trn2.48xlarge",))).notes if "nor a cost by it" in note]
    assert missing.endswith("price in us-east-1 is known, nor a cost by it; on_demand is known in us-east-2")


def test_an_unknown_region_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(
        DeviceError, match=r"no price of any instance is known for region 'atlantis': known are .*us-east-1"
    ):
        plan(replace(ASKED, regions=("us-east-1", "atlantis")))


def test_settings_take_regions_with_commas() -> None:
    settings = PlanSettings(region="us-east-2, eu-west-1")
    assert settings.options(None).regions == ("us-east-2", "eu-west-1")
    assert settings.catalog_config.region == "us-east-2"


# -- logical cores -------------------------------------------------------------------------------------------------

BOTH = replace(ASKED, devices=("trn2.3xlarge", "inf2.xlarge"), logical_nc_configs=(1, 2))


def test_a_part_is_planned_with_each_logical_core_that_it_can_have() -> None:
    rows = plan(BOTH).candidates
    assert {(row.device, row.lnc) for row in rows} == {("trn2.3xlarge", 1), ("trn2.3xlarge", 2), ("inf2.xlarge", 1)}
    assert {row.tp for row in rows if row.lnc == 1 and row.device == "trn2.3xlarge"} == {2, 4, 8}
    assert {row.tp for row in rows if row.lnc == 2} == {1, 2, 4}


def test_physical_cores_have_half_the_memory_and_no_measurement() -> None:
    rows = {(row.lnc, row.tp, row.batch): row for row in plan(replace(BOTH, devices=("trn2.3xlarge",))).candidates}
    one, two = rows[1, 8, 4], rows[2, 4, 4]
    assert two.memory_budget_bytes == pytest.approx(2 * one.memory_budget_bytes, abs=2)
    assert one.memory_bytes < two.memory_bytes
    assert one.known.provenance == "formula"
    assert "no measurement of Trainium2 with LNC 1 is known" in one.extrapolated
    assert "LNC" not in two.extrapolated


def test_what_no_part_in_question_can_have_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"lnc is 2: the considered instances can have 1$"):
        plan(replace(BOTH, devices=("inf2.xlarge",)))


def test_another_logical_core_is_not_simulated() -> None:
    report = plan(replace(BOTH, devices=("trn2.3xlarge",)))
    regrouped = next(row for row in report.candidates if row.lnc == 1)
    with pytest.raises(DeviceError, match=r"the row has LNC 1: a simulation has the 2 of trn2.3xlarge"):
        simulation_of(report, regrouped)


def test_choosing_what_a_chip_comes_with_changes_nothing_of_it() -> None:
    part = instance("trn2.48xlarge")
    assert part.with_lnc(1).with_lnc(2) == part
    assert part.with_lnc(1).chip.regrouped_from == 2


def test_a_table_says_what_was_a_choice() -> None:
    report = plan(replace(BOTH, devices=("trn2.48xlarge",), regions=REGIONS, instances_per_replica=(1, 2)))
    labels = {report.label(row) for row in report.candidates}
    assert {"trn2.48xlarge LNC 1 us-east-2", "2 x trn2.48xlarge LNC 2 us-east-2"} <= labels
    assert {ASKED_PLAIN.label(row) for row in ASKED_PLAIN.candidates} == {"trn2.48xlarge"}


ASKED_PLAIN = plan(replace(ASKED, devices=("trn2.48xlarge",)))
