"""Table of models known to run on the real accelerator: its form, the reach of each row, known verdicts."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import fields
from datetime import date
from importlib.resources import files
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from neuronserve.server.device.catalog import instance, instances
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.support import (
    Fact,
    Question,
    Release,
    Verdict,
    answer,
    billions,
    chip_status,
    facts,
    last_release,
    plain_name,
    releases,
)


def verdict(
    model: str, part: Instance, tp: int, release: str = "", features: Collection[str] = (), length: int = 0
) -> Verdict:
    """The verdict by the last release that supports the chip, if none is named."""
    return answer(Question(model, part, tp, release or last_release(part.chip.name), features, length))


ROWS = [pytest.param(fact, id=f"{number}-{fact.kind}-{fact.models}") for number, fact in enumerate(facts())]
MEASURED_ALONE = {
    "trn2.3xlarge": "trn2.48xlarge"
}  # instances of the table that the catalogue may lack, and a larger one

# Hub ids of the models that rows are about.
MODELS = [
    "meta-llama/Llama-3.2-1B-Instruct",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-7B-Instruct",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "meta-llama/Meta-Llama-3-70B-Instruct",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "arcee-ai/Trinity-Nano-Preview",
    "arcee-ai/Trinity-Mini",
    "arcee-ai/Trinity-Large-Preview",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Llama-3.1-405B-Instruct",
    "openai/gpt-oss-20b",
    "Qwen/Qwen3-235B-A22B",
    "meta-llama/Llama-3.3-70B-Instruct",
    "tiiuae/Falcon-H1-0.5B-Instruct",
    "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-2-13b-hf",
    "meta-llama/Llama-2-70b-hf",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct",
    "mistralai/Mistral-Small-Instruct-2409",
    "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "google/flan-t5-xl",
    "google-t5/t5-3b",
    "facebook/opt-13b",
    "facebook/opt-30b",
    "Qwen/Qwen3-VL-32B-Thinking",
    "Qwen/Qwen3-Embedding-8B",
    "arcee-ai/AFM-4.5B-Base",
    "baidu/ERNIE-4.5-0.3B-PT",
    "LGAI-EXAONE/EXAONE-4.0-1.2B",
    "openbmb/MiniCPM4-8B",
    "mistralai/Ministral-4b-instruct",
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "allenai/OLMo-2-0425-1B-Instruct",
    "allenai/OLMo-2-1124-7B",
    "microsoft/Phi-3-mini-4k-instruct",
    "microsoft/Phi-3.5-mini-instruct",
    "Qwen/Qwen2-7B-Instruct",
    "Qwen/Qwen3-0.6B",
    "ByteDance-Seed/Seed-OSS-36B-Instruct",
    "HuggingFaceTB/SmolLM3-3B",
    "microsoft/biogpt",
    "tiiuae/falcon-7b",
    "google/gemma-2b-it",
    "google/gemma-3-1b-it",
    "openai-community/gpt2",
    "ibm-granite/granite-3.1-8b-instruct",
    "internlm/internlm3-8b-instruct",
    "OrionStarAI/Orion-14B-Chat",
    "adept/persimmon-8b-base",
    "microsoft/phi-1_5",
    "EleutherAI/pythia-2.8b",
    "google/recurrentgemma-2b-it",
    "stabilityai/stablelm-2-1_6b",
    "google/vaultgemma-1b",
    "codellama/CodeLlama-7b-hf",
    "meta-llama/Llama-3.2-3B",
    "Qwen/Qwen2.5-Coder-32B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Meta-Llama-3-8B-Instruct",
    "RedHatAI/Llama-3.2-3B-Instruct-FP8-dynamic",
    "codellama/CodeLlama-34b-Instruct-hf",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-VL-8B-Thinking",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
]


def test_each_key_of_the_file_is_a_field() -> None:
    raw = json.loads(files("neuronserve.server.device").joinpath("support.json").read_text(encoding="utf-8"))
    allowed = {"facts": {field.name for field in fields(Fact)}, "releases": {field.name for field in fields(Release)}}
    assert raw.keys() == allowed.keys()
    for name, rows in raw.items():
        for row in rows:
            assert row.keys() <= allowed[name], row


def test_releases_are_dated_and_in_order() -> None:
    numbers = [tuple(map(int, release.sdk.split("."))) for release in releases()]
    dates = [date.fromisoformat(release.date) for release in releases()]
    assert all(earlier < later for earlier, later in pairwise(numbers))
    assert all(earlier <= later for earlier, later in pairwise(dates))


@pytest.mark.parametrize("fact", ROWS)
def test_a_row_has_a_source_and_a_date_and_stays_within_the_catalogue(fact: Fact) -> None:
    link = urlsplit(fact.source)
    assert link.scheme == "https"
    assert "." in link.netloc
    assert len(link.path) > 1
    assert re.fullmatch(r"[!-~]+", fact.source)
    assert date.fromisoformat(f"{fact.date}-01"[:10]) <= date(2026, 12, 31), (
        "a day, or the month when that is all there is"
    )
    assert fact.what
    assert fact.parts or fact.instances
    assert set(fact.parts) <= {each.chip.name for each in instances()}
    assert set(fact.instances) <= {each.name for each in instances()}
    assert not (fact.tp and fact.tp_except)
    known = [release.sdk for release in releases()]
    for bound in filter(None, (fact.since, fact.until)):
        assert any(sdk == bound or sdk.startswith(f"{bound}.") for sdk in known), bound
    assert not (fact.error or fact.software) or fact.kind in ("fails", "limit")
    if fact.kind == "runs":
        assert fact.models
        assert fact.parts, "what runs elsewhere on the part is shown"


@pytest.mark.parametrize("fact", ROWS)
def test_each_row_can_be_reached(fact: Fact) -> None:
    model = next(
        name for name in MODELS if re.search(fact.models, plain_name(name)) and billions(name) >= fact.billions
    )
    on = next(
        each
        for each in instances()
        if each.name in fact.instances or (not fact.instances and each.chip.name in fact.parts)
    )
    tp = fact.tp[0] if fact.tp else 3 if fact.tp_except else 1
    release = next(each.sdk for each in reversed(releases()) if fact.holds_in(each.sdk))
    length, stack = fact.longer_than + 1 if fact.longer_than else 0, "".join(fact.stacks[:1])
    found = answer(Question(model, on, tp, release, fact.features, length, stack))
    if fact.kind != "runs":
        assert fact in found.facts + found.limits + found.status
    else:
        assert fact in verdict(model, on, tp).facts or found.outcome == "known not to run"


def test_every_model_is_of_a_row() -> None:
    """A pattern that no longer matches what it was written for is noticed by the name that is left over."""
    for name in MODELS:
        assert any(fact.models and fact.is_about(plain_name(name)) for fact in facts()), name


VERDICTS = [
    # A published measurement of the instance and degree.
    ("meta-llama/Llama-3.1-8B-Instruct", "inf2.48xlarge", 8, "known to run", "optimum-neuron"),
    ("llama-8b", "inf2.48xlarge", 8, "known to run", "optimum-neuron"),
    ("/models/llama-2-7b-chat/", "inf2.xlarge", 2, "known to run", "pytorch.org"),
    ("meta-llama/Llama-3.3-70B-Instruct", "trn2.48xlarge", 64, "known to run", "trn2-llama3.3-70b-tutorial"),
    # Measured on another instance, or with another degree: told, not concluded from.
    ("llama-8b", "inf2.8xlarge", 2, "not known", "optimum-neuron"),
    ("llama-70b", "inf2.48xlarge", 12, "not known", "inferentia-llama3.3-70b"),
    # Of the same dimensions, and not.
    ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "inf2.48xlarge", 24, "known to run", "inferentia-llama3.3-70b"),
    ("codellama/CodeLlama-7b-hf", "inf2.xlarge", 2, "known to run", "issues/64"),
    ("somebody/anything-5b", "inf2.xlarge", 2, "not known", ""),
    # Reports of failures.
    ("meta-llama/Llama-3.2-1B", "inf2.xlarge", 2, "known not to run", "helix"),
    ("Qwen/Qwen2.5-1.5B-Instruct", "inf2.48xlarge", 8, "known not to run", "helix"),
    ("Qwen/Qwen2.5-14B", "inf2.24xlarge", 8, "known not to run", "issues/1303"),
    ("llama-8b", "trn1.2xlarge", 1, "known not to run", "issues/1222"),
    ("somebody/anything-5b", "trn1.32xlarge", 4, "known not to run", "issues/619"),
    ("meta-llama/Llama-3.2-1B", "trn2.48xlarge", 4, "not known", "llama-3.md"),
]


@pytest.mark.parametrize(("model", "device", "tp", "outcome", "source"), VERDICTS)
def test_verdict(model: str, device: str, tp: int, outcome: str, source: str) -> None:
    found = verdict(model, instance(device), tp)
    assert found.outcome == outcome
    assert source in str(found)
    assert bool(found.facts) == bool(source)


@pytest.mark.parametrize(
    ("device", "release", "outcome"),
    [
        ("inf2.48xlarge", "2.28.1", "known to run"),
        ("inf2.48xlarge", "2.29.0", "known not to run"),
        ("inf2.48xlarge", "2.33.0", "known not to run"),
        ("trn1.32xlarge", "2.29.0", "known not to run"),
        ("trn2.48xlarge", "2.33.0", "known to run"),
        ("inf1.24xlarge", "2.26.1", "known not to run"),
        ("inf1.24xlarge", "2.27.0", "known not to run"),
    ],
)
def test_a_release_that_dropped_the_part(device: str, release: str, outcome: str) -> None:
    tp = max(instance(device).allowed_tp)
    assert verdict("llama-70b", instance(device), tp, release).outcome == outcome


@pytest.mark.parametrize(
    ("chip", "sdk"),
    [("Inferentia1", "2.26.1"), ("Inferentia2", "2.28.1"), ("Trainium1", "2.28.1"), ("Trainium2", releases()[-1].sdk)],
)
def test_the_release_asked_of_by_default_is_the_last_for_the_part(chip: str, sdk: str) -> None:
    assert last_release(chip) == sdk


def test_features_and_lengths() -> None:
    trn1, inf2 = instance("trn1.32xlarge"), instance("inf2.48xlarge")
    assert verdict("llama-8b", trn1, 32).outcome == "known to run"
    assert verdict("llama-8b", trn1, 32, features=["prefix_caching"]).outcome == "known not to run"
    assert verdict("llama-8b", trn1, 32, "2.27.1", ["prefix_caching"]).outcome == "not known", "measured without"
    assert verdict("llama-8b", inf2, 8, length=32768).outcome == "known to run"
    assert verdict("llama-8b", inf2, 8, length=32769).outcome == "known not to run"
    deepseek, trn2 = "deepseek-ai/DeepSeek-V3-0324", instance("trn2.48xlarge")
    assert [verdict(deepseek, trn2, 64, length=length).outcome for length in (512, 1024)] == [
        "known to run",
        "known not to run",
    ]
    assert "chunked prefill" in _text(verdict("llama-8b", inf2, 8, features=["chunked_prefill"]))
    assert "chunked prefill" not in _text(verdict("llama-8b", inf2, 8))


def _text(found: Verdict) -> str:
    return "\n".join(map(str, found.limits))


def test_a_bug_that_was_fixed_is_of_the_releases_before() -> None:
    outcomes = [
        verdict("meta-llama/Llama-3.2-3B", instance("inf2.8xlarge"), 2, sdk).outcome for sdk in ("2.22.1", "2.23.0")
    ]
    assert outcomes == ["known not to run", "not known"]


def test_status_by_release() -> None:
    inf2 = instance("inf2.48xlarge")
    critical = "critical security and bug fixes only"
    assert critical not in "\n".join(map(str, verdict("llama-8b", inf2, 8, "2.30.0").status))
    assert critical in "\n".join(map(str, verdict("llama-8b", inf2, 8, "2.31.0").status))
    newest, found = chip_status("Inferentia2")
    assert newest == releases()[-1].sdk
    assert critical in "\n".join(map(str, found))
    assert {fact.kind for fact in found} == {"status", "fails"}


def test_a_failure_states_its_error_as_the_software_prints_it() -> None:
    found = verdict("meta-llama/Llama-3.1-8B-Instruct", instance("inf2.xlarge"), 2, length=3073)
    (fact,) = found.failures
    assert "NCC_INLA001" in fact.error
    for part in (fact.error, fact.software, fact.source, fact.date, "TP 2"):
        assert part in str(fact)
    assert not verdict("meta-llama/Llama-3.1-8B-Instruct", instance("inf2.xlarge"), 2, length=3072).failures
    assert not verdict("meta-llama/Llama-3.1-8B-Instruct", instance("inf2.48xlarge"), 8, length=4096).failures


def test_a_failure_may_be_of_one_serving_stack_alone() -> None:
    asked = [
        Question("somebody/anything-5b", instance("inf2.xlarge"), 2, "2.28.1", stack=name)
        for name in ("vllm-neuron", "nxdi-vllm", "")
    ]
    assert [len(answer(each).failures) for each in asked] == [2, 0, 0]


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8),
        ("/models/Mixtral-8x7B-v0.1/", 56),
        ("Qwen3-Coder-30B-A3B", 30),
        ("Qwen2.5-0.5B", 0.5),
        ("trinity-nano", 0),
    ],
)
def test_a_size_rule_goes_by_the_name(model: str, size: float) -> None:
    assert billions(model) == size
    killed = [fact for fact in verdict(model, instance("inf2.xlarge"), 1).limits if "is killed" in fact.what]
    assert len(killed) == (1 if size >= 6 or "nano" in model else 0)
