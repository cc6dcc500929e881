"""Files of `plan --emit`: unchanged golden files, the figures of the row, and schemas of their readers."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.planner.emit.deployment import LeftOut, deployment_of
from neuronserve.planner.emit.folder import README
from neuronserve.planner.emit.neuronserve import MOST_ENGINES, serve_arguments
from neuronserve.planner.emit.targets import TARGETS, rendered
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.planner.emit_cases import CASES, GOLDEN, PLANS, rows, written

ROWS = list(rows())


@pytest.fixture(scope="module")
def report() -> PlanReport:
    return plan(PLANS["8b, default stacks"])


@pytest.mark.parametrize("case", CASES)
def test_the_files_are_as_they_were(case: str) -> None:
    """After an intended change run `python -m tests.planner.emit_cases`, and read the difference."""
    golden = {path.name: path.read_text() for path in (GOLDEN / case).iterdir()}
    assert written(CASES[case]) == golden


def test_a_deployment_is_the_row_of_the_plan(report: PlanReport) -> None:
    for candidate in report.candidates[:20]:
        d = deployment_of(report, candidate)
        assert (d.part.name, d.tp, d.dp, d.slots) == (candidate.device, candidate.tp, candidate.dp, candidate.batch)
        assert (d.max_model_len, d.prompt_buckets) == (2048, (1024, 2048))
        assert d.decode_buckets == ((2048,) if d.stack.name == "vllm-neuron" else (128, 256, 512, 1024, 2048))
        assert d.promise.output_tokens_s == pytest.approx(4.0 * 200)
        assert (d.promise.ttft_s, d.promise.tpot_limit_s) == (candidate.ttft_s, 0.04)
        assert d.checkpoint is None, "llama-8b is the name of dimensions"


def test_names_suit_aws_and_kubernetes() -> None:
    for d in ROWS:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", d.name)


# --- each file by the schema or the parser of its reader


def test_the_serve_command_is_one_that_the_server_takes() -> None:
    for d in ROWS:
        if "neuronserve.sh" not in rendered(d).texts:
            assert d.dp > MOST_ENGINES
            continue
        settings = load_settings(ServeSettings, serve_arguments(d)[1:])
        assert (settings.device, settings.tensor_parallel_size, settings.pace) == (d.part.name, d.tp, "device")
        assert (settings.data_parallel_size, settings.max_num_seqs, settings.max_model_len) == (
            d.dp,
            d.slots,
            d.max_model_len,
        )
        assert settings.context_encoding_buckets == d.prompt_buckets
        assert not settings.enable_prefix_caching
        if d.price is not None:
            asked = settings.usd_per_hour or d.part.usd(settings.price_basis)
            assert asked == d.price.usd


def test_the_scenario_is_the_planned_load(tmp_path: Path) -> None:
    file = tmp_path / "check.toml"
    for d in ROWS:
        text = rendered(d).texts.get("check.toml")
        if text is None:
            assert d.trace is not None
            continue
        file.write_text(text)
        scenario = load_scenario(str(file), {})
        assert scenario.run.metadata["precision"] == d.weights
        assert scenario.arrival.request_rate == d.promise.request_rate
        assert scenario.dataset.random_input_len + scenario.dataset.random_output_len <= d.max_model_len
        assert scenario.slo.tpot_ms == (None if d.promise.tpot_limit_s is None else d.promise.tpot_limit_s * 1e3)
    assert make_plan(scenario, 0).arrival == "poisson"


def test_scripts_are_bash_and_their_config_is_json(tmp_path: Path) -> None:
    for number, d in enumerate(CASES.values()):
        for path, text in rendered(d).texts.items():
            if path.endswith(".sh"):
                script = tmp_path / f"{number}-{path}"
                script.write_text(text)
                checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
                assert (checked.returncode, checked.stderr) == (0, "")


def test_the_readme_tells_of_every_target_and_every_placeholder() -> None:
    for d in ROWS:
        texts = written(d)
        page = texts[README]
        for target in TARGETS:
            assert f"`{target.path}`" in page
        for name in set(re.findall(r"<[A-Z0-9_]+>", "".join(texts.values()))):
            assert f"- `{name}`: " in page, name


# --- buckets of the two stacks


def test_prompts_fit_the_last_bucket_of_the_plugin_which_is_the_whole_length() -> None:
    """The plugin's last buckets are max_num_batched_tokens and max_num_seqs; contexts are multiples of 128."""
    found = 0
    for d in ROWS:
        text = rendered(d).texts.get("vllm-neuron.sh")
        if text is None:
            continue
        found += 1
        config = script_config(text)["neuron_config"]
        assert config["num_batched_tokens_buckets"][-1] == d.max_model_len
        assert f"--max-num-batched-tokens {d.max_model_len} " in text
        assert config["num_seqs_buckets"] == [d.slots]
        assert all(n < d.max_model_len and n % 128 == 0 for n in config.get("decode_context_length_buckets", []))
    assert found > 5


def test_nxd_inference_has_a_block_for_each_slot_and_the_same_buckets_with_and_without_vllm() -> None:
    for d in ROWS:
        texts = rendered(d).texts
        if "vllm-nxdi.sh" not in texts:
            continue
        overrides = script_config(texts["vllm-nxdi.sh"])["override_neuron_config"]
        whole = json.loads(texts["nxdi-neuron-config.json"])
        assert f"--num-gpu-blocks-override {d.slots} " in texts["vllm-nxdi.sh"]
        assert {key: whole[key] for key in overrides if key != "quantized_checkpoints_path"} == {
            key: value for key, value in overrides.items() if key != "quantized_checkpoints_path"
        }
        assert whole["context_encoding_buckets"][-1] <= whole["max_context_length"] <= whole["seq_len"]


def script_config(text: str) -> Any:
    return json.loads(text.partition("<<JSON\n")[2].partition("\nJSON\n")[0])


@pytest.mark.parametrize(
    ("path", "changes", "reason"),
    [
        ("vllm-neuron.sh", {}, "not on Inferentia2"),
        ("sagemaker-model.json", {"tp": 1, "dp": 24}, "whole devices of 2 cores, and a server has 1"),
        ("helm-neuron.yaml", {"core_bytes": 40 * 2**30}, "the host of inf2.48xlarge has 768"),
        ("check.toml", {"trace": "day.csv"}, "send that file"),
    ],
)
def test_what_cannot_be_written_is_left_out_with_the_reason(path: str, changes: dict[str, Any], reason: str) -> None:
    left_out = rendered(replace(CASES["inf2"], **changes)).left_out[path]
    assert isinstance(left_out, LeftOut)
    assert reason in left_out.reason


def test_a_price_of_the_users_own_is_handed_on_and_a_listed_one_is_named() -> None:
    own, listed = (serve_arguments(CASES[name]) for name in ("inf2-spot", "inf2"))
    assert own[own.index("--usd-per-hour") + 1] == "0.25"
    assert "--price-basis" not in own
    assert listed[listed.index("--price-basis") + 1] == "on_demand"
