"""Simon Willison's `llm`: its command with this server among its models, as its documentation has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, url: str) -> Path:
    """A directory of `llm` that knows the server's models."""
    shared = {"model_name": "fake", "api_base": f"{url}/v1"}
    models = [
        {"model_id": "here", **shared, "supports_tools": True, "supports_schema": True},
        {"model_id": "here-text", **shared, "completion": True},
    ]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    return tmp_path


def llm(home: Path, *args: str) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(home)}
    ended = subprocess.run(
        [sys.executable, "-m", "llm", *args], capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_prompts_whole_and_streamed(home: Path) -> None:
    streamed = llm(home, "-m", "here", "-o", "temperature", "0", "What is 3 + 4?")
    assert "7" in streamed
    assert llm(home, "-m", "here", "--no-stream", "-o", "temperature", "0", "What is 3 + 4?") == streamed
    assert llm(home, "-m", "here", "-c", "And 2 + 2?")  # the conversation goes on
    assert llm(home, "-m", "here-text", "-o", "max_tokens", "8", "Once upon a time")


def test_schemas_and_tools(home: Path) -> None:
    made = json.loads(llm(home, "-m", "here", "--schema", "age int", "-o", "max_tokens", "60", "Ada is 36 years old."))
    assert isinstance(made["age"], int)
    (home / "tools.py").write_text(
        'def get_weather(city: str) -> str:\n    "Get the current weather in a city."\n'
        '    return \'{"temperature": 17, "condition": "cloudy"}\'\n'
    )
    options = ("--functions", str(home / "tools.py"), "-o", "temperature", "0")
    assert "cloudy" in llm(home, "-m", "here", *options, "What is the weather in Oslo?")
