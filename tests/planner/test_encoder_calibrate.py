"""`neuronserve calibrate --encoders`: rows read as passes, fitted, and compared, from the command line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main
from neuronserve.planner.calibrate.encoder_decoder import BEAMS, answer_work, observe_answers
from neuronserve.planner.calibrate.encoder_fit import calibrate_encoders, encoder_folds
from neuronserve.planner.calibrate.encoder_passes import observe_passes
from neuronserve.planner.calibrate.encoder_rows import EncoderMeasurement, read_encoder_rows
from neuronserve.planner.calibrate.observation import Observation
from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.cost.calibration import Calibration, default_calibration
from neuronserve.server.cost.work import Runtime, StepWork
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.sizes import DecoderSizes

SAMPLE = Path(__file__).parent / "encoders_sample.csv"
PUBLISHED_STEPS = Path(__file__).parent / "published_sample.csv"
GROUPS = {f"encode_{kind}_{chip}" for kind in ("single", "batch") for chip in ("inf1", "inf2", "trn1")}
ANSWERS = {"encoder_decoder_inf2", "encoder_decoder_trn1"}


def row(**cells: str) -> EncoderMeasurement:
    """Two models' worth of workers on inf1.xlarge, 8 passes of 6 texts in flight."""
    known = {name: "" for name in next(iter(read_encoder_rows(SAMPLE))).texts}
    usual = {
        "row_id": "r",
        "instance": "inf1.xlarge",
        "model": "bert-base-uncased",
        "sdk": "2.16.0",
        "batch": "6",
        "run_mode": "Data Parallel",
        "seq_len": "128",
        "n_models": "4",
        "workers_per_model": "2",
        "throughput_per_s": "1200",
        "latency_p50_ms": "40",
    }
    return EncoderMeasurement(2, known | usual | cells)


def observed(given: EncoderMeasurement) -> Observation:
    found, skipped = observe_passes([given])
    assert not skipped
    return found[0]


def reason(given: EncoderMeasurement) -> str:
    found, skipped = observe_passes([given])
    assert not found
    return skipped[0][1]


def test_a_pass_that_queues_takes_the_time_of_its_core_and_not_its_latency() -> None:
    assert observed(row()).seconds == pytest.approx(4 * 6 / 1200)  # 4 cores, 8 in flight: half of 40 ms
    alone = row(n_models="1", workers_per_model="1", throughput_per_s="150")
    assert observed(alone).seconds == pytest.approx(0.040)
    pipeline = {"run_mode": "Model Pipeline", "n_models": "", "workers_per_model": "", "threads": "12", "batch": "1"}
    split = row(**pipeline, instance="inf1.6xlarge", throughput_per_s="2000", latency_p50_ms="6")
    assert observed(split).seconds == pytest.approx(16 / 2000)


def test_rows_that_cannot_be_compared_say_why() -> None:
    assert "2 passes in flight: 8 workers are stated" in reason(row(latency_p50_ms="10"))
    assert "a benchmark has at least one" in reason(row(n_models="", workers_per_model="", throughput_per_s="10"))
    assert "seq_len is 'FP32', not a positive number" in reason(row(seq_len="FP32"))
    assert "batch is 1.5, not a whole number" in reason(row(batch="1.5"))
    assert "Resnet-50 is no known model of text" in reason(row(model="Resnet-50"))
    spread = row(n_models="", workers_per_model="", batch="128", throughput_per_s="12800", latency_p50_ms="10")
    assert "128 texts in 10 ms are beyond the peak of one core" in reason(spread)
    assert "inf9.xlarge" in reason(row(instance="Inf9.xlarge"))


def test_models_are_found_in_the_name_or_its_details() -> None:
    named = row(model="BERT base", details="fp32, distilbert-base-uncased-finetuned-sst-2-english, sequence-length=128")
    assert observed(replace(named, texts=named.texts | {"seq_len": ""})).shape.num_layers == 6
    assert observed(row(model="albert-base-v2")).shape == resolve_shape("bert-base-uncased")


def test_an_answer_of_an_unknown_model_says_so() -> None:
    parallel = {"run_mode": "Tensor Parallel", "tp": "8", "input_len": "128", "output_len": "84"}
    found, skipped = observe_answers(
        [
            row(**parallel, model=name, instance="Inf2.24xlarge", batch="1")
            for name in ("google/flan-t5-xl", "bart-large")
        ]
    )
    assert [o.shape.hidden_size for o in found] == [2048]
    assert skipped == [("r", "answer: the sizes of bart-large are not known")]


def test_work_of_a_pass_by_hand() -> None:
    model = resolve_shape("bert-base-uncased")
    work = StepWork(model, instance("inf1.xlarge"), 1, Runtime()).encode(128, 3, values=10)
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    attention = 3 * 12 * 4 * 128 * 128 * 768
    assert work["encode_matmul"] == pytest.approx((2 * 3 * 128 * weights + attention) / 16e12)
    assert work["encode_weights"] == pytest.approx(2 * weights / (50e9 / 4), rel=0.08)  # 50 GiB/s or GB/s a chip
    assert work["encode_activation"] == pytest.approx(3 * 128 * 12 * 768 / 4096)
    assert (work["encode_layer"], work["encode_call"], work["encode_output"]) == (12, 1, 40)
    assert work["collectives"] == 0
    assert StepWork(model, instance("inf2.xlarge"), 2, Runtime()).encode(128, 3, 10)["collectives"] == 12


def test_work_of_an_answer_by_hand() -> None:
    """One pass, and steps of all beams with attention to the prompt: half as many sublayers again, K and V read."""
    steps = StepWork(
        DecoderSizes(2, 64, 128, 4, 4, 16, 100, is_gated=False).spec(), instance("inf2.24xlarge"), 2, STATIC
    )
    one, three = answer_work(steps, 128, 1), answer_work(steps, 128, 3)
    step = {name: (three[name] - one[name]) / 2 for name in one}
    plain, projection = steps.decode(BEAMS, 128), 2 * 2 * 64 * 64 / 2
    assert step["kv"] == pytest.approx(2 * plain["kv"])
    assert step["weights"] == pytest.approx(plain["weights"] + 2 * projection / 410e9)
    assert step["collectives"] == pytest.approx(1.5 * plain["collectives"])
    encode = steps.encode(128, 1, 0)
    assert one["encode_matmul"] == pytest.approx(encode["encode_matmul"] + 2 * 128 * projection / 95e12)
    assert one["encode_layer"] == 2


STATIC = Runtime(is_continuous=False)


def test_no_fit_sees_an_answer_and_each_is_predicted_within_a_factor_of_two() -> None:
    answers, skipped = observe_answers(read_encoder_rows(SAMPLE))
    assert {o.group for o in answers} == ANSWERS
    assert not skipped
    own = default_calibration().coefficients
    for answer in answers:
        predicted = sum(units * own.get(name, 0.0) for name, units in answer.work.items())
        assert 1 / 2 < predicted / answer.seconds < 2


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["calibrate", *argv])
    read = capsys.readouterr()
    return code, read.out + read.err


def report_of(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_a_check_compares_encoders_beside_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "check.json"
    tables = "--check", str(PUBLISHED_STEPS), "--encoders", str(SAMPLE)
    code, text = run(capsys, *tables, "--json", str(file))
    assert code == 0
    report = report_of(file)
    assert GROUPS | ANSWERS | {"decode_dense_inf2"} <= set(report["groups"])
    assert all(report["groups"][name]["all"]["mean"] <= 0.20 for name in GROUPS)
    assert report["calibration"]["encoders_sha256"] == default_calibration().encoders_sha256
    assert "encode_single_inf1" in text
    reasons = {entry["row_id"]: entry["reason"] for entry in report["skipped"]}
    assert {"e0", "e6", "e248", "e477", "e560"} <= set(reasons)
    assert "e269" not in reasons


@pytest.mark.slow
def test_a_fit_to_encoders_replaces_their_terms_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fit.json"
    code, _ = run(capsys, "--encoders", str(SAMPLE), "--json", str(file))
    assert code == 0
    report, before = report_of(file), default_calibration()
    fitted = Calibration.from_json(file.read_text(), "report")
    for name, value in before.coefficients.items():
        if name.startswith("encode_"):
            assert fitted.coefficients[name] == pytest.approx(value, rel=0.5)
        else:
            assert fitted.coefficients[name] == value
    assert fitted.version != before.version
    for name in GROUPS:
        unseen = report["groups"][name]["left_out"]
        assert set(unseen) == {"series", "source", "model", "chip"}
        assert unseen["series"]["mean"] <= 0.20
        assert report["baselines"]["roofline"][name]["mean"] > 0.3
    two = report["baselines"]["two coefficients"]
    own = {name: report["groups"][name]["left_out"]["series"]["mean"] for name in GROUPS}
    assert sum(own.values()) < 0.9 * sum(two[name]["mean"] for name in GROUPS)
    again, _ = calibrate_both()
    assert again == {name: value for name, value in fitted.coefficients.items() if name.startswith("encode_")}


def calibrate_both() -> tuple[dict[str, float], int]:
    passes, skipped = observe_passes(read_encoder_rows(SAMPLE))
    return calibrate_encoders(passes).coefficients, len(skipped)


def test_a_term_of_a_pass_is_held_by_three_models_and_two_releases() -> None:
    passes, _ = observe_passes(read_encoder_rows(SAMPLE))
    labels = encoder_folds(passes).labels
    for name in default_calibration().coefficients:
        if name.startswith("encode_"):
            own = [index for index, o in enumerate(passes) if o.work[name] > 0]
            assert len(set(labels["model"][own].tolist())) >= 3
            assert len(set(labels["source"][own].tolist())) >= 2


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ((), "one of --data, --check and --encoders is needed"),
        (("--data", "a.csv", "--check", "a.csv"), "--data and --check exclude each other"),
    ],
)
def test_tables_that_do_not_go_together_are_refused(
    argv: tuple[str, ...], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").touch()
    code, text = run(capsys, *(str(tmp_path / each) if each.endswith(".csv") else each for each in argv))
    assert code == 2
    assert error in " ".join(text.split())


def test_a_table_without_a_usable_row_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(SAMPLE.read_text().splitlines()))
    images = tmp_path / "images.csv"
    with images.open("w", newline="") as out:
        table = csv.DictWriter(out, rows[0])
        table.writeheader()
        table.writerows(each for each in rows if each["model"] == "YOLO v4")
    code, text = run(capsys, "--encoders", str(images))
    assert code != 0
    assert "none of the 1 rows of" in text
    assert "YOLO v4 is no known model of text" in " ".join(text.split())
