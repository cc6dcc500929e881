"""A tokenizer whose pattern takes too many steps fails for the text alone, with an error as of any endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from neuronserve.server.errors import TokenizerFailed
from neuronserve.server.text.encoder_tokenizer import EncoderTokenizer
from neuronserve.server.text.tokenizer import load_tokenizer
from tests.api.serving import PATIENCE_S, Server, running_server, write_checkpoint

HOSTILE = "a" * 40 + "b"
ASKED = [
    ("/v1/completions", {"prompt": HOSTILE}),
    ("/tokenize", {"prompt": HOSTILE + " " * 3000}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": HOSTILE}]}),
    ("/v1/responses", {"input": HOSTILE}),
    ("/v1/messages", {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": HOSTILE}]}),
    ("/v1/messages/count_tokens", {"model": "fake", "messages": [{"role": "user", "content": HOSTILE}]}),
    ("/tokenize", {"prompt": HOSTILE}),
]


def write_hostile(directory: Path) -> Path:
    """A checkpoint whose tokenizer backtracks."""
    path = write_checkpoint(directory) / "tokenizer.json"
    backend = Tokenizer.from_file(str(path))
    split = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, backend.pre_tokenizer])
    backend.save(str(path))
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(write_hostile(tmp_path_factory.mktemp("hostile") / "model")) as running:
        yield running


@pytest.mark.parametrize(("path", "body"), ASKED, ids=[f"{path} {len(json.dumps(body))}" for path, body in ASKED])
def test_a_text_that_the_tokenizer_fails_on_is_an_error_in_json(
    server: Server, path: str, body: dict[str, str]
) -> None:
    answer = httpx.post(server.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/json"
    assert "The tokenizer of this model failed on the text" in answer.json()["error"]["message"]
    good = httpx.post(server.url + "/v1/completions", json={"prompt": "hello", "max_tokens": 1}, timeout=PATIENCE_S)
    assert good.status_code == 200


def test_texts_to_encode_fail_in_the_same_way(tmp_path: Path) -> None:
    tokenizer = EncoderTokenizer(load_tokenizer(write_hostile(tmp_path / "model")), 512)
    with pytest.raises(TokenizerFailed):
        tokenizer.encode(["hello", HOSTILE])
    assert len(tokenizer.encode(["hello"])[0].token_ids) == 5
