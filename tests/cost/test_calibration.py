"""The stored calibration: what it holds, what it promises, and files that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuronserve.server.cost.calibration import VERSION, Calibration, ErrorStats, GroupError, default_calibration
from neuronserve.server.cost.evidence import Evidence, Point, Sample
from neuronserve.server.cost.stacks import STACKS, HostWork
from neuronserve.server.cost.terms import TERMS
from neuronserve.server.errors import SettingsError

STATS = ErrorStats(0.1, 0.2, 0.3, -0.05)
POINT = Point("decode", "Inferentia2", 8.03, 8, 4, 4096, 2, False)
SAMPLE = Calibration(
    {name: term.start for name, term in TERMS.items() if not term.is_optional} | {"kv_gather": 2e-9},
    date="2026-01-02",
    data_sha256="ab" * 32,
    num_rows=3,
    errors={"seen": GroupError(3, STATS), "held": GroupError(2, STATS, {"source": STATS, "model": None})},
    hosts={"tgi": HostWork(0.05, 2e-4, 5e-9, 0.0)},
    clients={"spacing_s": 0.1, "stop_rate": 1e-3},
    evidence=Evidence([Sample(POINT, "Some-8B", "docs", 2, 1.25)]),
    baselines={"roofline": {"seen": STATS, "held": None}},
)


def broken(**changes: object) -> str:
    return json.dumps(SAMPLE.as_dict() | changes)


def changed(section: str, name: str, value: Any) -> str:
    """The stored sample with one entry of a section set, or taken out where `value` is None."""
    record = SAMPLE.as_dict()
    record[section].pop(name, None)
    if value is not None:
        record[section][name] = value
    return json.dumps(record)


def coefficient(name: str, value: Any) -> str:
    return changed("coefficients", name, {"value": value, "unit": "s", "meaning": ""})


def host(**changes: Any) -> str:
    record = SAMPLE.as_dict()
    return changed("hosts", "tgi", record["hosts"]["tgi"] | changes)


def sample(**changes: Any) -> str:
    record = SAMPLE.as_dict()
    return broken(evidence=[record["evidence"][0] | changes])


def test_storing_and_reading_gives_the_same_calibration() -> None:
    read = Calibration.from_json(json.dumps(SAMPLE.as_dict()), "c.json")
    assert read.as_dict() == SAMPLE.as_dict()
    assert read.coefficients == SAMPLE.coefficients
    assert read.errors == SAMPLE.errors
    assert read.baselines == SAMPLE.baselines
    assert read.host("tgi") == SAMPLE.host("tgi")
    assert read.evidence.samples == SAMPLE.evidence.samples


def test_a_report_that_holds_a_calibration_is_one() -> None:
    report = json.dumps({"calibration": SAMPLE.as_dict(), "rows": []})
    assert Calibration.from_json(report, "report").as_dict() == SAMPLE.as_dict()


def test_what_is_stored_says_what_each_coefficient_is() -> None:
    stored = SAMPLE.as_dict()["coefficients"]
    assert stored["kv_gather"] == {"value": 2e-9, "unit": "s", "meaning": TERMS["kv_gather"].meaning}


def test_a_stack_without_load_tests_adds_nothing() -> None:
    assert SAMPLE.host("ideal") == HostWork()
    assert SAMPLE.host("ideal").step_s(32, 32, 128_256) == 0.0


def test_the_version_names_the_date_and_the_data() -> None:
    assert SAMPLE.version == f"{VERSION}-2026-01-02-abababababab"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "expected `object`, got `array`"),
        ("{}", "version"),
        (broken(version=2), "version is 2"),
        (broken(num_rows="many"), "num_rows is 'many': expected `int`, got `str`"),
        (changed("coefficients", "weights", None), "unknown none, missing weights"),
        (coefficient("hop_z", 1), "unknown hop_z, missing none"),
        (coefficient("weights", 0), "weights.value is 0: expected `float` > 0.0"),
        (coefficient("kv_gather", -1), "kv_gather.value is -1"),
        (coefficient("weights", "fast"), "weights.value is 'fast': expected `float`, got `str`"),
        (coefficient("weights", float("inf")), "is not JSON"),
        (changed("hosts", "apache", {}), "apache"),
        (host(slot_s=-1e-3), "hosts.tgi.slot_s is -0.001"),
        (host(think_s=1), "object contains unknown field `think_s`"),
        (changed("clients", "spacing_s", 0), "clients.spacing_s is 0"),
        (changed("clients", "patience", 1.0), "patience"),
        (broken(errors={"g": {"n": 1}}), "errors.g.all is missing"),
        (sample(error=0), "evidence[0].error is 0"),
        (sample(tp=0), "evidence[0].tp is 0"),
        (sample(phase="idle"), "evidence[0].phase is 'idle'"),
        (sample(colour="red"), "object contains unknown field `colour`"),
    ],
)
def test_what_is_no_calibration_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=rf"here\.json is not a calibration of version {VERSION}: ") as refused:
        Calibration.from_json(text, "here.json")
    assert reason in str(refused.value)


def test_the_shipped_calibration_is_within_physics() -> None:
    found = default_calibration().coefficients
    for name, value in found.items():
        least = 0.0 if TERMS[name].is_optional else TERMS[name].least  # some of the averaged fits lack optional terms
        assert value >= least, name
        assert TERMS[name].start / 10 < value < TERMS[name].start * 10, name
    assert set(default_calibration().hosts) <= set(STACKS)


def test_the_shipped_calibration_has_errors_of_what_it_had_not_seen() -> None:
    errors = default_calibration().errors
    for name in ("decode_dense_inf2", "decode_trn1", "prefill_dense_inf2", "prefill_trn1"):
        assert set(errors[name].left_out) == {"series", "source", "model"}
        assert errors[name].series is not None
    assert "series" in errors["serving_inf2"].left_out
    assert all(stats is None for stats in errors["decode_contradicted_inf2"].left_out.values())


@pytest.mark.parametrize(
    ("group", "mean"),
    [("decode_dense_inf2", 0.12), ("decode_trn1", 0.14), ("prefill_dense_inf2", 0.17), ("serving_inf2", 0.15)],
)
def test_the_shipped_calibration_keeps_its_promise_on_sources_and_models_it_did_not_see(
    group: str, mean: float
) -> None:
    for way, stats in default_calibration().errors[group].left_out.items():
        assert stats is not None
        assert stats.mean <= mean, way
