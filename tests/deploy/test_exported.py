"""A running server exports every metric of the chart's dashboard, alerts and scalers."""

from __future__ import annotations

import httpx
import pytest

from tests.api.serving import running_server, write_checkpoint
from tests.api.telemetry.scraping import Scrape, scrape
from tests.deploy.chart import asked_series

OF_THE_SCRAPE = {"namespace", "job"}  # labels that Prometheus puts on


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Scrape:
    """A paced server with a fake model, after a few answers and a 404."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("model"))
    with running_server(checkpoint, "--pace", "device") as server:
        body = {"prompt": "a" * 100, "max_tokens": 9, "ignore_eos": True}
        for _ in range(2):
            assert httpx.post(server.url + "/v1/completions", json=body, timeout=30).status_code == 200
        assert httpx.get(server.url + "/v1/nothing").status_code == 404
        return scrape(server.url)


@pytest.mark.parametrize("name", sorted(asked_series()))
def test_a_series_that_the_chart_asks_for_is_exported_with_its_labels(seen: Scrape, name: str) -> None:
    assert seen.has(name)
    for label in asked_series()[name] - OF_THE_SCRAPE:
        assert seen.has(name, label), label


def test_the_values_that_queries_choose_exist(seen: Scrape) -> None:
    for name, label, values in (
        ("neuronserve:cost_usd_total", "kind", {"prefill", "decode", "idle", "unused_cores"}),
        ("neuronserve:device_work_total", "quantity", {"hbm_bytes"}),
        ("neuronserve:pace_steps_total", "state", {"late", "in_time"}),
        ("http_requests_total", "status", {"2xx", "4xx"}),
    ):
        assert values <= {sample.labels[label] for sample in seen.samples if sample.name == name}
