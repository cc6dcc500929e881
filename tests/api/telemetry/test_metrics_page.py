"""docs/reference/metrics.md agrees with the code."""

from __future__ import annotations

import re

from neuronserve.server.api.telemetry.families import FAMILIES
from neuronserve.server.api.telemetry.tracing import attributes
from neuronserve.testkit.settings.faults import FaultyServeSettings
from tests.api.telemetry.test_watch import Bench
from tools.doc_tables import DOCS

PAGE = DOCS / "reference" / "metrics.md"


def test_every_family_is_on_the_page_once() -> None:
    page = PAGE.read_text()
    for family in FAMILIES:
        assert page.count(f"| `{family.exposed}` | {family.kind} |") == 1


def test_names_and_prefixes_are_unique_and_counters_do_not_name_their_suffix() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
    assert all(name.startswith(("vllm:", "neuronserve:", "http_request")) for name in names)
    assert not [f.name for f in FAMILIES if f.kind == "counter" and f.name.endswith("_total")]


def test_flags_and_attributes_on_the_page_exist() -> None:
    page = PAGE.read_text()
    flags = {flag.removeprefix("--").replace("-", "_") for flag in re.findall(r"`(--[a-z-]+)", page)}
    assert flags <= set(FaultyServeSettings.model_fields)
    life = Bench().watch("a")._life
    for name in attributes(life, "m"):
        last = name.rpartition(".")[2]
        assert f"`{name}`" in page or f"`.{last}`" in page, name
