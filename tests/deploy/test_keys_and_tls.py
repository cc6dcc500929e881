"""Callers in the cluster have the server's key and protocol, checked on the golden manifests."""

from __future__ import annotations

import pytest
import yaml

from tests.deploy.chart import CASES, component, front, golden, of_kind, pods, settings_text, values_file

pytestmark = pytest.mark.parametrize("case", CASES)


def test_prometheus_gets_in_where_there_are_keys(case: str) -> None:
    settings = yaml.safe_load(settings_text(golden(case)))
    given = yaml.safe_load(values_file(case).read_text()).get("auth", {})
    has_keys = any(given.get(name) for name in ("apiKeys", "existingSecret", "keysFileSecret"))
    is_public = "/metrics" in settings.get("public_paths", ())
    assert is_public == (has_keys and not given.get("metricsSecret"))
    for monitor in of_kind(golden(case), "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        if component(monitor) != "server":  # a router's or picker's metrics name no caller
            assert "authorization" not in endpoint
            continue
        assert ("authorization" in endpoint) == (has_keys and not is_public)


def test_whoever_calls_the_server_speaks_as_it_does(case: str) -> None:
    documents = golden(case)
    secure = {component(pod) for pod in pods(documents) if "--ssl-certfile" in str(pod)}
    secure |= {"server"} if "ssl_certfile" in yaml.safe_load(settings_text(documents)) else set()
    given = yaml.safe_load(values_file(case).read_text())
    assert bool(secure) == ("tls" in given)
    assert secure <= {component(front(documents))}
    for pod in pods(documents):
        probes = [each["httpGet"] for each in pod["spec"]["containers"][0].values() if "httpGet" in each]
        for probe in probes:
            if probe["port"] == "http":  # the server's liveness has a port of its own
                assert probe.get("scheme", "HTTP") == ("HTTPS" if component(pod) in secure else "HTTP")
    for monitor in of_kind(documents, "ServiceMonitor"):
        is_secure = component(monitor) in secure
        assert monitor["spec"]["endpoints"][0].get("scheme", "http") == ("https" if is_secure else "http")
    for pod in of_kind(documents, "Pod"):
        variables = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        assert variables["BASE_URL"].startswith("https:" if secure else "http:")
