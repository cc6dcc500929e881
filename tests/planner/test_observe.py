"""`neuronserve observe`: it finds known coefficients, and reports undetermined ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.cli import main
from neuronserve.loadtests.mock_server import MockServer, Script
from neuronserve.loadtests.probe import Probe, ProbeShape
from neuronserve.loadtests.specs import EndpointSpec
from neuronserve.planner.observe.deployment import Deployment
from neuronserve.planner.observe.fit import UNKNOWNS, ObservedFit, fit_endpoint
from neuronserve.planner.observe.observation import observations, read_report
from neuronserve.planner.observe.result import ObservedEndpoint
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.calibration import Calibration, read_calibration, shipped_calibration, use_calibration
from neuronserve.server.cost.stacks import STACKS
from neuronserve.server.errors import SettingsError
from tests.planner.observing import DEPLOYMENT, HOST, SLOTS, measured, run, truth

ALONE = [(1, 100), (1, 1000), (1, 4000)]
SEVERAL = [(2, 100), (SLOTS, 100), (2 * SLOTS, 100)]  # over two engines
TRUTH = {"decode_scale": 3.0, "prefill_scale": 2.0, "slot_s": HOST.slot_s, "request_s": HOST.request_s}
UNSEEN, HIDDEN = "nothing observed depends on it", "the observations do not determine it"


@pytest.fixture(autouse=True)
def shipped_afterwards() -> Iterator[None]:
    yield
    use_calibration(None)


def on(stack: StackName) -> Deployment:
    return replace(DEPLOYMENT, stack=STACKS[stack])


def observed(
    loads: list[tuple[int, int]], deployment: Deployment = DEPLOYMENT, base: Calibration | None = None
) -> ObservedEndpoint:
    """An endpoint of the true coefficients, fitted from `base`, None: the shipped ones."""
    runs = measured(deployment, truth(deployment, 3, 2), iter(loads))
    found = observations(runs, deployment)
    return ObservedEndpoint.of("gpu.example:8000", "2026-11-22", found, deployment, base or shipped_calibration())


def values(fit: ObservedFit) -> dict[str, float]:
    return {name: fit.value(name) for name in UNKNOWNS}


@pytest.mark.parametrize("stack", ["vllm-neuron", "nxd-static", "ideal"])
def test_what_is_exact_is_found_exactly(stack: StackName) -> None:
    found = observed([*ALONE, *SEVERAL], on(stack))
    assert values(found.fit) == pytest.approx(TRUTH, rel=1e-6)
    assert all(each.fitted_s == pytest.approx(each.observation.seconds) for each in found.fit.residuals)


@pytest.mark.parametrize("stack", ["optimum-vllm", "tgi"])
def test_where_all_prompts_are_padded_to_one_length_their_scale_is_as_good_as_the_requests_seconds(
    stack: StackName,
) -> None:
    deployment, shipped, host = on(stack), shipped_calibration(), STACKS[stack].host
    knowing = replace(shipped, hosts={**shipped.hosts, host: replace(shipped.host(host), request_s=HOST.request_s)})
    for base in (shipped, knowing):
        found = observed([*ALONE, *SEVERAL], deployment, base)
        notes = {each.name: each.note for each in found.fit.unknowns if each.note}
        assert notes == {"request_s": HIDDEN}
        assert found.fit.value("request_s") == base.host(host).request_s
        assert {each.observation.positions for each in found.fit.residuals} == {deployment.max_model_len}
        assert all(each.fitted_s == pytest.approx(each.observation.seconds) for each in found.fit.residuals)
        wrong = ["prefill_scale", "request_s"] if base is shipped else []
        right = {name: value for name, value in values(found.fit).items() if name not in wrong}
        assert right == pytest.approx({name: TRUTH[name] for name in right}, rel=1e-6)


def test_noise_of_two_percent_moves_scales_by_less_than_five() -> None:
    base, runs = shipped_calibration(), measured(DEPLOYMENT, truth(DEPLOYMENT, 3, 2), iter([*ALONE, *SEVERAL]))
    exact = observations(runs, DEPLOYMENT).used
    for seed in range(20):
        random = np.random.default_rng(seed)
        noisy = [replace(each, seconds=each.seconds * random.normal(1, 0.02)) for each in exact]
        fit = fit_endpoint(noisy, DEPLOYMENT, base)
        assert [fit.value(name) for name in UNKNOWNS[:2]] == pytest.approx([3, 2], rel=0.05)


@pytest.mark.parametrize(
    ("stack", "loads", "notes"),
    [
        ("vllm-neuron", ALONE, {"slot_s": UNSEEN}),
        ("optimum-vllm", ALONE, {"slot_s": UNSEEN, "request_s": HIDDEN}),
        ("vllm-neuron", ALONE[2:] + SEVERAL, {"request_s": HIDDEN}),
        ("optimum-vllm", SEVERAL[1:], {"prefill_scale": UNSEEN, "request_s": UNSEEN}),
    ],
)
def test_what_nothing_determines_keeps_its_value_and_says_so(
    stack: StackName, loads: list[tuple[int, int]], notes: dict[str, str]
) -> None:
    shipped_hosts = {name: own for name, own in shipped_calibration().hosts.items() if name != "vllm-neuron"}
    base = replace(shipped_calibration(), hosts=shipped_hosts)  # a stack with a host's times, and one without
    fit, host = observed(loads, on(stack), base).fit, base.host(STACKS[stack].host)
    shipped = {"decode_scale": 1.0, "prefill_scale": 1.0, "slot_s": host.slot_s, "request_s": host.request_s}
    assert {each.name: each.note for each in fit.unknowns if each.note} == notes
    assert {name: fit.value(name) for name in notes} == {name: shipped[name] for name in notes}
    assert fit.value("decode_scale") == pytest.approx(3, rel=1e-6)


def test_a_host_that_takes_no_time_is_zero_and_never_less() -> None:
    runs = measured(DEPLOYMENT, truth(DEPLOYMENT, 1, 1, replace(HOST, slot_s=0)), iter([*ALONE, *SEVERAL]))
    used = observations(runs, DEPLOYMENT).used
    fewer = [replace(each, seconds=each.seconds * 0.99) if each.busy > 1 else each for each in used]
    fit = fit_endpoint(fewer, DEPLOYMENT, shipped_calibration())
    assert fit.value("slot_s") == 0


@pytest.mark.parametrize(
    ("found", "left_out"),
    [
        (run(2, 100, 16, 0.1, 0.02), "2 requests open at once"),
        (run(1, 100, 16, 0.1, 0.02, total_cached_input_tokens=64), "cached"),
        (run(8, 100, 16, 0.1, 0.06, median_tpot_ms=20.0), "chunks carry several tokens"),
        (run(1, 100, 64, 0.1, 0.02), "steps read 128 to 256 positions"),
        (run(1, 100, 1, 0.1, 0.0, median_itl_ms=None, median_tpot_ms=None), "no answer has two"),
        (run(1, 100, 16, 0.1, 0.02, median_ttft_ms=None), "no request was completed"),
    ],
)
def test_a_figure_that_is_no_steps_time_is_left_out_with_the_reason(found: dict[str, Any], left_out: str) -> None:
    result = observations([("r.json", found)], on("nxd-static"))
    assert any(each.startswith("r.json: ") and left_out in each for each in result.left_out)
    assert len(result.used) + len(result.left_out) == 2


def test_a_stream_that_is_alone_is_timed_by_its_mean_where_chunks_carry_several_tokens() -> None:
    result = observations([("r", run(1, 100, 16, 0.1, 0.06, median_tpot_ms=20.0))], DEPLOYMENT)
    assert result.used[1].seconds == pytest.approx(0.02)


READ_UNDER: dict[StackName, tuple[tuple[int, ...], tuple[int, ...]]] = {  # positions of prompts, and of steps
    "nxd-static": ((128, 256, 128), (128, 256, 128, 128, 128)),
    "vllm-neuron": ((128, 256, 128), (256,) * 5),
    "nxdi-vllm": ((128, 256, 128), (128, 256, 128, 128, 128)),
    "optimum-vllm": ((256,) * 3, (256,) * 5),
}


@pytest.mark.slow
async def test_what_a_load_test_writes_is_read() -> None:
    """The reports of `bench serve` are read, from a server with equal times for all steps."""
    async with MockServer(Script(ttft_s=0.02, itl_s=0.01)) as server:  # gaps in which a busy host merges no chunks
        shape = ProbeShape(max_model_len=256, max_num_seqs=4, repeats=2)
        runs = await Probe(shape).run(EndpointSpec(base_url=server.url), None, lambda _: None)
    for stack, (prompts, contexts) in READ_UNDER.items():
        deployment = replace(on(stack), max_model_len=256, max_num_seqs=4, data_parallel_size=1)
        found = observations(runs, deployment).used
        prefills = [(each.positions, each.num_measured) for each in found if each.phase == "prefill"]
        steps = [(each.positions, each.busy) for each in found if each.phase == "decode"]
        assert prefills == list(zip(prompts, (2, 2, 1), strict=True))
        assert steps == list(zip(contexts, (1, 1, 1, 2, 4), strict=True))


def test_a_sweep_is_all_of_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps({"kind": "sweep", "points": [run(1, 100, 16, 0.1, 0.02), run(4, 100, 16, 0.1, 0.02)]}))
    assert len(read_report(path)) == 2


def test_an_open_loop_is_taken_at_its_mean_concurrency() -> None:
    result = observations([("r", run(16, 100, 16, 0.1, 0.02, request_rate=4.0, mean_concurrency=10.0))], DEPLOYMENT)
    assert [each.busy for each in result.used] == [5.0]  # of each of two engines


def test_the_calibration_knows_the_endpoint_and_what_was_published() -> None:
    deployment = on("nxd-static")
    found = observed([*ALONE, *SEVERAL], deployment).calibration
    stored = Calibration.from_json(json.dumps(found.as_dict()), "it")
    assert stored.version == found.version != shipped_calibration().version
    assert stored.num_rows == 9
    own = [each for each in stored.evidence.samples if each.source == "observed at gpu.example:8000"]
    assert {each.point.chip for each in own} == {"Inferentia2"}
    assert len(stored.evidence.samples) == len(own) + len(shipped_calibration().evidence.samples)
    here = deployment.cost(stored).point("decode", SLOTS, 128)
    band = stored.evidence.band(here)
    assert band.provenance == "measured"
    assert band.high / band.low < 1.35
    elsewhere = stored.evidence.band(replace(here, billions=65, chip="Trainium1", positions=4096))
    assert elsewhere.high / elsewhere.low > band.high / band.low


def files(tmp_path: Path, loads: list[tuple[int, int]]) -> list[str]:
    """Write each run as a report file. Returns the flags that name them."""
    flags = []
    for number, (_, found) in enumerate(measured(DEPLOYMENT, truth(DEPLOYMENT, 3, 2), iter(loads))):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(found))
        flags += ["--report", str(path)]
    return flags


FLAGS = "--device inf2.48xlarge --tensor-parallel-size 8 --data-parallel-size 2 --max-num-seqs 32 --stack vllm-neuron"


def test_reports_become_a_calibration_that_plan_and_simulate_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plans = tmp_path / "mine.json", []
    argv = ["observe", "http://gpu.example:8000", *FLAGS.split(), *files(tmp_path, [*ALONE, *SEVERAL])]
    assert main([*argv, "-o", str(out)]) == 0
    assert "do not determine" not in capsys.readouterr().out
    report, mine = json.loads(out.read_text()), read_calibration(out)
    assert (report["endpoint"], report["stack"]) == ("gpu.example:8000", "vllm-neuron")
    assert mine.host("vllm-neuron").slot_s == pytest.approx(HOST.slot_s)
    for more in ([], ["--calibration", str(out)]):
        found = tmp_path / "plan.json"
        assert main(["plan", "llama-8b", "--device", "inf2.48xlarge", *more, "--json", str(found)]) == 0
        plans.append(json.loads(found.read_text()))
    assert [each["calibration"] for each in plans] == [shipped_calibration().version, mine.version]
    simulated = tmp_path / "simulated.json"
    argv = ["simulate", "llama-1b", "--num-prompts", "2", "--calibration", str(out), "--json", str(simulated)]
    assert main(argv) == 0
    assert mine.version in simulated.read_text()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["http://me:secret@gpu.example", "-o", "x.json"], "NEURONSERVE_API_KEY"),
        (["gpu.example", "-o", "x.json"], "http://HOST:PORT"),
        (["http://gpu.example"], "--output"),
        (["http://gpu.example", "-o", "nowhere/x.json"], "nowhere/x.json"),
        (["http://gpu.example", "-o", "x.json", "--report", "missing.json"], "no such file"),
        (["http://gpu.example", "-o", "x.json", "--report", __file__], "report"),
        (["http://gpu.example", "-o", "x.json", "--max-model-len", "1000000"], "max_model_len is 1000000"),
        (["http://127.0.0.1:9", "-o", "x.json"], "127.0.0.1:9 cannot be reached"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    argv: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["observe", *argv]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "secret" not in said
    assert not list(tmp_path.iterdir())


def test_nothing_but_figures_that_are_no_steps_time_is_refused() -> None:
    with pytest.raises(SettingsError, match="left out"):
        fit_endpoint([], DEPLOYMENT, shipped_calibration())


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "\x00"])
def test_a_file_that_is_no_calibration_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert main(["plan", "llama-1b", "--calibration", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
