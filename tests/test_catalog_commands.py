"""A user's catalogue from the outside: each command that knows parts and prices takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main
from neuronserve.server.config import CatalogConfig
from neuronserve.server.device.catalog import use_catalog
from tests.api.serving import run_command

CATALOG = """
[instances."inf2.mini"]
chip = "Inferentia2"
num_chips = 1
vcpus = 2
host_memory_gib = 8
network_gbps = 1
source = "our own partition of an inf2.8xlarge"
date = 2026-09-01

[[prices]]
instance = "inf2.mini"
region = "eu-central-1"
on_demand_usd = 0.5
source = "internal price list"
date = 2026-09-01
"""


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    file = tmp_path / "catalog.toml"
    file.write_text(CATALOG)
    return str(file)


@pytest.fixture(autouse=True)
def built_in_sheet_afterwards() -> Iterator[None]:
    yield
    use_catalog(CatalogConfig())


def report(tmp_path: Path, *argv: str) -> Any:
    out = tmp_path / "out.json"
    assert main([*argv, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_plan_knows_the_part_its_price_and_where_the_price_is_from(tmp_path: Path, catalog: str) -> None:
    where = ["--catalog", catalog, "--region", "eu-central-1"]
    found = report(tmp_path, "plan", "llama-1b", "--device", "inf2.mini", *where)
    price = {"usd": 0.5, "source": "internal price list", "date": "2026-09-01"}
    assert found["prices"]["inf2.mini"]["on_demand"] == price
    assert {c["at_capacity"]["on_demand"]["hourly_usd"] for c in found["candidates"]} == {0.5}
    assert any("internal price list" in note for note in found["notes"])
    assert all("catalogue file" in c["extrapolated"] for c in found["candidates"])


def test_a_spot_price_is_what_the_user_says_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", "llama-1b", "--device", "trn1.2xlarge", "--region", "eu-west-1", "--price-basis", "spot"])
        == 2
    )
    assert "no spot price of trn1.2xlarge in eu-west-1 is known: give one" in capsys.readouterr().err
    argv = ["plan", "llama-1b", "--device", "inf2.xlarge", "--price-basis", "spot"]
    assert any("Spot Instance Advisor" in note for note in report(tmp_path, *argv)["notes"])
    found = report(tmp_path, *argv, "--spot-discount", "0.5")
    assert found["candidates"][0]["at_capacity"]["spot"]["hourly_usd"] == pytest.approx(0.5 * 0.7582)


def test_trainium2_is_priced_where_and_how_it_is_sold(tmp_path: Path) -> None:
    where = ["--device", "trn2.3xlarge", "--region", "sa-east-1", "--price-basis", "capacity_block"]
    found = report(tmp_path, "plan", "llama-8b", *where)
    assert {c["tp"] for c in found["candidates"]} <= {1, 2, 4}
    assert {c["at_capacity"]["capacity_block"]["hourly_usd"] for c in found["candidates"]} == {2.235}
    assert any("Capacity Blocks price page" in note for note in found["notes"])


def test_simulate_and_the_environment(tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONSERVE_CATALOG", catalog)
    monkeypatch.setenv("NEURONSERVE_REGION", "eu-central-1")
    found = report(tmp_path, "simulate", "llama-1b", "--num-prompts", "5", "--device", "inf2.mini")
    assert found["usd_per_hour"] == 0.5


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--region", "mars-1"], "no price of any instance is known for region 'mars-1'"),
        (["--spot-discount", "1"], "--spot-discount: must be less than 1"),
        (["--catalog", "/nowhere.toml"], "--catalog: /nowhere.toml: cannot be read"),
        (["--device", "trn2.48xlarge"], "no on_demand price of trn2.48xlarge in us-east-1 is known"),
    ],
)
def test_what_is_not_known_is_refused(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "llama-1b", "--num-prompts", "5", *argv]) == 2
    assert words in capsys.readouterr().err


def test_serve_refuses_a_wrong_file_before_it_loads_anything(tmp_path: Path, catalog: str) -> None:
    Path(catalog).write_text(CATALOG.replace("num_chips = 1", "num_chips = -1"))
    ended = run_command("serve", str(tmp_path), "--catalog", catalog)
    assert ended.returncode == 2
    assert 'instances."inf2.mini".num_chips is -1: expected `int` >= 1' in ended.stderr


@pytest.mark.slow
def test_bench_latency_runs_on_a_part_of_the_file(catalog: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "latency", "--num-iters", "1", "--input-len", "8", "--output-len", "2", "--device", "inf2.mini"]
    assert main(argv) == 2
    assert "there is no device 'inf2.mini'" in capsys.readouterr().err
    assert main([*argv, "--catalog", catalog, "--max-model-len", "64"]) == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--price-basis", "capacity_block"], "no capacity_block price of inf2.xlarge in us-east-1 is known: give one"),
        (["--region", "us-west-1"], "no on_demand price of inf2.xlarge in us-west-1 is known"),
    ],
)
def test_serve_refuses_a_price_that_was_asked_for_and_is_not_known(
    tmp_path: Path, catalog: str, argv: list[str], words: str
) -> None:
    ended = run_command("serve", str(tmp_path), "--catalog", catalog, *argv)
    assert (ended.returncode, words in ended.stderr) == (2, True)
