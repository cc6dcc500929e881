"""helm, old and new."""

from __future__ import annotations

import pytest

from tests.deploy.chart import HELM_VERSIONS, run_helm, tool


@pytest.fixture(params=HELM_VERSIONS)
def helm(request: pytest.FixtureRequest) -> str:
    """Path of one version's program; skips where it is not installed."""
    found = tool(f"helm-{request.param}")
    assert request.param in run_helm(found, "version").stdout
    return found
