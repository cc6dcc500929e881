"""Outputs parse, validate and end for every schema, at every temperature, streamed or whole.

`make test-all` has forty outputs of each schema; otherwise one is enough.
"""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

from tests.api.bad_requests import CHAT
from tests.api.schemas import SCHEMAS
from tests.api.serving import Server
from tests.depth import representative

TEMPERATURES = (0.0, 0.7, 1.0, 1.5, 2.0)
PROMPTS = ("Hello!", "What is 3 + 4?", "Tell me a story.", "Ada is 36 years old.")
AT_ONCE = 8
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


def output(http: httpx.Client, schema: Any, number: int) -> tuple[str, str]:
    """The text of one answer, and why it ended."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
        "temperature": TEMPERATURES[number % len(TEMPERATURES)],
        "seed": number,
        "max_tokens": 1000,
    }
    if number % 3:
        (choice,) = http.post(CHAT, json=body).json()["choices"]
        return choice["message"]["content"], choice["finish_reason"]
    lines = http.post(CHAT, json={**body, "stream": True}).text.splitlines()
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]


def fault_of(name: str, text: str, reason: str) -> str | None:
    """Return the fault of an output."""
    try:
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=FORMATS)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{name}: {error}: {text}"
    return None if reason == "stop" else f"{name}: it ends by {reason}"


@pytest.mark.parametrize("count", representative([1, 40], 1))
def test_every_output_parses_and_validates(real_server: Server, count: int) -> None:
    assert len(SCHEMAS) == 50
    cases = list(itertools.product(SCHEMAS, range(count)))
    with httpx.Client(base_url=real_server.url) as http, ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = list(pool.map(lambda case: output(http, SCHEMAS[case[0]], case[1]), cases))
    faults = [fault for case, answer in zip(cases, outputs, strict=True) if (fault := fault_of(case[0], *answer))]
    assert not faults
    assert len({text for text, _ in outputs}) > len(outputs) / 4
