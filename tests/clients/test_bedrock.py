"""Bedrock's Converse by an emulator in front: AWS's client, MiniStack, and this server behind it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import botocore.session
import httpx
import pytest

from neuronserve.testing import Server, running_server
from tests.api.serving import until
from tests.clients.test_clients import CLIENTS

MINISTACK = CLIENTS / "bin" / "ministack"
MODEL = "meta.llama3-8b-instruct-v1:0"
pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not MINISTACK.exists(), reason="the clients are not installed: `make client-test`"),
]


@pytest.fixture(scope="module")
def bedrock(kernel_cache: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Any]]:
    """The server, and AWS's client of the emulator."""
    folder = tmp_path_factory.mktemp("bedrock")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ("--kernel-cache-dir", kernel_cache, "--served-model-name", MODEL)
    with running_server(args=flags) as server, (folder / "log").open("w") as log:
        env = {**os.environ, "MINISTACK_BEDROCK_PROXY_URL": server.url, "GATEWAY_PORT": str(port)}
        emulator = subprocess.Popen([MINISTACK], cwd=folder, env=env, stdout=log, stderr=log)
        try:
            until(lambda: answers(port))
            yield (
                server,
                botocore.session.get_session().create_client(
                    "bedrock-runtime",
                    region_name="us-east-1",
                    endpoint_url=f"http://127.0.0.1:{port}",
                    aws_access_key_id="test",
                    aws_secret_access_key="test",
                ),
            )
        finally:
            emulator.terminate()
            emulator.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_converse_whole_streamed_and_with_tools(bedrock: tuple[Server, Any]) -> None:
    server, client = bedrock
    asked = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "The capital?"}]}]}
    with server.script({"answer": "Paris."}):
        whole = client.converse(**asked)
        events = list(client.converse_stream(**asked)["stream"])
    assert (whole["output"]["message"]["content"], whole["stopReason"]) == ([{"text": "Paris."}], "end_turn")
    texts = [event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event]
    assert "".join(texts) == "Paris."
    body = {"model": MODEL, "messages": [{"role": "user", "content": "The capital?"}], "max_tokens": 1}
    usage = httpx.post(f"{server.base_url}/chat/completions", json=body).json()["usage"]
    assert whole["usage"]["inputTokens"] == usage["prompt_tokens"]
    schema = {"json": {"type": "object", "properties": {"city": {"type": "string"}}}}
    tools = {"tools": [{"toolSpec": {"name": "get_weather", "inputSchema": schema}}]}
    with server.script({"answer": {"calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}}):
        called = client.converse(**asked, toolConfig=tools)
    (use,) = (part["toolUse"] for part in called["output"]["message"]["content"])
    assert (use["name"], use["input"], called["stopReason"]) == ("get_weather", {"city": "Oslo"}, "tool_use")
