"""Suites of clients, as their users would write them: any server with the built-in model will do.

They know its address alone (`NEURONSERVE_URL`), run in an environment of the clients (`tests/clients/requirements.txt`)
and import nothing of this project.
"""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """The address of the server, without /v1."""
    return os.environ["NEURONSERVE_URL"]


@pytest.fixture(scope="session", autouse=True)
def _environment(url: str) -> None:
    """Set the variables that clients read by default."""
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "any", "OPENAI_API_BASE": f"{url}/v1"}
    os.environ |= {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any"}
