"""The stored calibration: what it holds, what it promises, and files that are none."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from server.cost.calibration import (
    MEANING,
    SERVING_MEANING,
    Calibration,
    Coefficients,
    ErrorStats,
    GroupError,
    ServingCoefficients,
    default_calibration,
)
from server.errors import SettingsError

SAMPLE = Calibration(
    Coefficients(),
    date="2026-01-02",
    data_sha256="ab" * 32,
    num_rows=3,
    errors={
        "seen": GroupError(3, ErrorStats(0.1, 0.2, 0.3)),
        "held": GroupError(2, ErrorStats(0.1, 0.2, 0.3), ErrorStats(0.4, 0.5, 0.6)),
    },
)


def broken(**changes: object) -> str:
    return json.dumps(SAMPLE.as_dict() | changes)


def with_coefficient(name: str, value: object) -> str:
    record = SAMPLE.as_dict()
    record["coefficients"].setdefault(name, {})["value"] = value
    return json.dumps(record)


def without_coefficient(name: str) -> str:
    record = SAMPLE.as_dict()
    del record["coefficients"][name]
    return json.dumps(record)


def test_storing_and_reading_gives_the_same_calibration() -> None:
    assert Calibration.from_json(json.dumps(SAMPLE.as_dict()), "c.json") == SAMPLE


def test_a_report_that_holds_a_calibration_is_one() -> None:
    assert Calibration.from_json(json.dumps({"calibration": SAMPLE.as_dict(), "rows": []}), "report") == SAMPLE


def test_every_coefficient_has_a_unit_and_a_meaning() -> None:
    assert [f.name for f in fields(Coefficients)] == list(MEANING)
    assert [f.name for f in fields(ServingCoefficients)] == list(SERVING_MEANING)
    assert all(unit == ("s" if name.endswith("_s") else "1") for name, (unit, _) in MEANING.items())


def test_the_version_names_the_date_and_the_data() -> None:
    assert SAMPLE.version == "2-2026-01-02-abababababab"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "expected `object`, got `array`"),
        ("{}", "version"),
        (broken(version=7), "version is 7"),
        (broken(num_rows="many"), "num_rows is 'many': expected `int`, got `str`"),
        (without_coefficient("hop_s"), "hop_s is missing"),
        (with_coefficient("hop_z", 1), "object contains unknown field `hop_z`"),
        (with_coefficient("hop_s", 0), "hop_s.value is 0: expected `float` > 0.0"),
        (with_coefficient("hop_s", -1), "hop_s.value is -1"),
        (with_coefficient("hop_s", "fast"), "hop_s.value is 'fast': expected `float`, got `str`"),
        (with_coefficient("hop_s", float("inf")), "is not JSON"),
        (broken(errors={"g": {"n": 1}}), "errors.g.mean is missing"),
    ],
)
def test_what_is_no_calibration_is_refused_by_name(text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=r"here\.json is not a calibration of version 2: ") as refused:
        Calibration.from_json(text, "here.json")
    assert reason in str(refused.value)


def test_the_shipped_calibration_is_within_physics() -> None:
    c = default_calibration().coefficients
    for name in ("memory_efficiency", "compute_efficiency", "attention_efficiency", "link_efficiency"):
        assert 0.1 < getattr(c, name) < 0.9, name
    assert 0.5e-6 < c.hop_s < 3e-6  # published: 1 to 2 us
    assert 2e-5 < c.prefill_launch_s < c.layer_launch_s < 2e-4


def test_the_shipped_calibration_keeps_its_promise_on_models_it_did_not_see() -> None:
    errors = default_calibration().errors
    decode, trainium, prefill = (errors[g].left_out for g in ("decode_dense_inf2", "decode_trn1", "prefill_dense_inf2"))
    assert decode is not None
    assert trainium is not None
    assert prefill is not None
    assert (decode.median <= 0.07, decode.mean <= 0.09, decode.p90 <= 0.18) == (True, True, True)
    assert prefill.mean <= 0.15
    assert trainium.mean <= 0.15
