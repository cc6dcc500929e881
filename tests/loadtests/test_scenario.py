"""Scenarios and flags: built-in ones load, flags override, and unknown or impossible values are refused."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from neuronserve.loadtests.errors import SpecError
from neuronserve.loadtests.flags import add_scenario_flags, parse_goodput, scenario_tree
from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.scenario import SECTIONS, built_in_names, key_names, load_scenario
from neuronserve.loadtests.specs import Scenario


def parse(*words: str) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser()
    add_scenario_flags(parser)
    return scenario_tree(vars(parser.parse_args(words)))


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_scenario_makes_a_plan(name: str) -> None:
    scenario = load_scenario(name, {})
    assert scenario.name == name
    assert scenario.description
    plan = make_plan(scenario, 0)
    assert len(plan.schedule.offsets or plan.dataset.sessions) == len(plan.dataset.sessions) > 0


def test_the_built_in_scenarios_are_those_that_are_promised() -> None:
    assert {"chat", "summarization", "code", "rag", "batch", "mlperf-server", "overload", "edits"} <= set(
        built_in_names()
    )


def test_mlperf_runs_for_600_seconds() -> None:
    plan = make_plan(load_scenario("mlperf-server", {"arrival": {"request_rate": 2.0}}), 0)
    assert plan.num_requests == 1200
    assert plan.arrival == "poisson"


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('\N{BOM}name = "mine"\n[dataset]\nnum_prompts = 7\nrandom_input_len = 9\n[slo]\nttft_ms = 5.0\n')
    scenario = load_scenario(str(file), parse("--num-prompts", "3", "--goodput", "tpot:50"))
    assert (scenario.dataset.num_prompts, scenario.dataset.random_input_len) == (3, 9)
    assert (scenario.slo.ttft_ms, scenario.slo.tpot_ms) == (5.0, 50.0)


def test_flags_have_the_names_of_vllm_bench_serve() -> None:
    words = (
        "--num-prompts 10 --request-rate 4.5 --burstiness 0.5 --max-concurrency 8 --random-input-len 100 "
        "--random-output-len 20 --goodput ttft:200 tpot:20 e2el:1000 --seed 3 --model m --host h --port 80 "
        "--metadata precision=int8 --metadata region=eu --no-ignore-eos --backend openai-chat"
    )
    tree = parse(*words.split(), "--extra-body", '{"top_p": 0.9}')
    scenario = load_scenario(None, tree)
    assert scenario.dataset.num_prompts == 10
    assert (scenario.arrival.request_rate, scenario.arrival.burstiness, scenario.arrival.max_concurrency) == (
        4.5,
        0.5,
        8,
    )
    assert (scenario.slo.ttft_ms, scenario.slo.tpot_ms, scenario.slo.e2el_ms) == (200, 20, 1000)
    assert scenario.endpoint.base_url == "http://h:80"
    assert scenario.run.metadata == {"precision": "int8", "region": "eu"}
    assert not scenario.run.ignore_eos
    assert scenario.endpoint.extra_body == {"top_p": 0.9}


def test_every_key_has_a_flag_with_a_description() -> None:
    parser = argparse.ArgumentParser()
    add_scenario_flags(parser)
    described = {action.dest for action in parser._actions if action.help}
    keys = {key for section in SECTIONS if section != "slo" for key in key_names(section)}
    assert keys <= described


UNKNOWN = [
    ("nmae = 'x'", "unknown key nmae; did you mean name?"),
    ("[arival]\nrequest_rate = 1.0", "unknown key arival; did you mean arrival?"),
    ("[arrival]\nbrustiness = 1.0", "unknown key arrival.brustiness; did you mean arrival.burstiness?"),
    ("[slo]\nzzz = 1", "unknown key slo.zzz; known are ttft_ms, tpot_ms, e2el_ms, attainment"),
    ("arrival = 3", "arrival is 3: it must be a table"),
    ("[dataset]\nnum_prompts = 0", "num_prompts is 0: it must be at least 1"),
    ("[dataset]\nnum_prompts = 'many'", "dataset.num_prompts: Expected `int`, got `str`"),
    ("[dataset]\nrandom_range_ratio = 1.0", "random_range_ratio is 1: it must be in"),
    ("[dataset]\ndataset_name = 'sonnet'", "dataset.dataset_name: Invalid enum value 'sonnet'"),
    ("[arrival]\nrequest_rate = -2.0", "request_rate is -2: it must be above 0"),
    ("[slo]\nattainment = 1.5", "attainment is 1.5: it must be above 0 and at most 1"),
    ("[price]\nutilization = 0.0", "utilization is 0: it must be above 0 and at most 1"),
    ('[run]\nrequest_id_prefix = "a\\nb"', "request_id_prefix is 'a\\nb': it must be printable ASCII"),
    ("= 3", "is not TOML"),
]


@pytest.mark.parametrize(("text", "message"), UNKNOWN, ids=[text for text, _ in UNKNOWN])
def test_a_wrong_scenario_is_refused_by_key_and_value(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(SpecError) as refusal:
        load_scenario(str(file), {})
    assert message in str(refusal.value)
    assert "wrong.toml" in str(refusal.value)


def test_a_scenario_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(SpecError, match="no scenario 'chatt': built in are batch, chat,"):
        load_scenario("chatt", {})


@pytest.mark.parametrize("text", ["ttft", "ttft:", "ttft:fast", "itl:3", ":3"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=f"'{text}' is no limit; they look like ttft:MS, tpot:MS, e2el:MS"):
        parse_goodput([text])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--extra-body", "{"), "is not JSON"),
        (("--extra-body", "[1]"), "must be a JSON object"),
        (("--metadata", "precision"), "must look like KEY=VALUE"),
        (("--base-url", "http://a:1", "--port", "2"), "exclude each other"),
    ],
)
def test_flags_that_cannot_be_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(*words)


@pytest.mark.parametrize(
    ("arrival", "expected"),
    [
        ({}, "burst"),
        ({"max_concurrency": 4}, "closed"),
        ({"request_rate": 3.0}, "poisson"),
        ({"request_rate": 3.0, "burstiness": 2.0}, "gamma"),
        ({"request_rate": 3.0, "arrival": "constant"}, "constant"),
    ],
)
def test_auto_picks_the_arrival_process(arrival: dict[str, Any], expected: str) -> None:
    assert make_plan(load_scenario(None, {"arrival": arrival}), 0).arrival == expected


def test_a_trace_is_replayed_at_its_own_times_unless_a_rate_is_given(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "a", "timestamp": 3}\n{"prompt": "b", "timestamp": 7}\n')
    dataset = {"dataset_name": "jsonl", "dataset_path": str(file)}
    plan = make_plan(load_scenario(None, {"dataset": dataset, "arrival": {"trace_speed": 2.0}}), 0)
    assert (plan.arrival, plan.schedule.offsets) == ("trace", [0.0, 2.0])
    plan = make_plan(load_scenario(None, {"dataset": dataset, "arrival": {"request_rate": 1.0}}), 0)
    assert plan.arrival == "poisson"


@pytest.mark.parametrize(
    ("arrival", "message"),
    [
        ({"arrival": "closed"}, "max_concurrency must say"),
        ({"arrival": "poisson"}, "request_rate must be finite"),
        ({"arrival": "ramp"}, "ramp_up_start_rps and ramp_up_end_rps are needed"),
        ({"arrival": "trace"}, "the dataset has no timestamps"),
    ],
)
def test_arrivals_that_lack_something_are_refused(arrival: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make_plan(load_scenario(None, {"arrival": arrival}), 0)


def test_messages_need_the_chat_backend(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    tree = {"dataset": {"dataset_name": "jsonl", "dataset_path": str(file)}}
    with pytest.raises(SpecError, match="need 'openai-chat'"):
        make_plan(load_scenario(None, tree), 0)
    assert make_plan(load_scenario(None, {**tree, "endpoint": {"backend": "openai-chat"}}), 0).num_requests == 1


def test_defaults_are_a_valid_scenario() -> None:
    assert load_scenario(None, {}) == Scenario()
