"""Pictures in requests of every dialect, through a server with the fake model and its sockets."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest
from PIL import Image

from tests.api.serving import Server, running_server, write_checkpoint
from tests.media.pictures import data_url, encoded, noise

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|image_pad|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in m.tool_calls or [] %}{{ call }}{% endfor %}<|end|>{% endfor %}"
    "{% if tools %}{{ tools }}{% endif %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
PAD = 260  # id of <|image_pad|>
OPTIONS = {"patch_size": 16, "size": {"shortest_edge": 32 * 32, "longest_edge": 128 * 128}}


def write_vision_checkpoint(directory: Path) -> Path:
    """The fake checkpoint, of a family that reads pictures."""
    write_checkpoint(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    special = {**tokenizer["added_tokens"][-1], "id": PAD, "content": "<|image_pad|>"}
    tokenizer["added_tokens"].append(special)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "qwen3_vl", "vocab_size": PAD + 1}))
    named = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": TEMPLATE}))
    (directory / "preprocessor_config.json").write_text(json.dumps(OPTIONS))
    return directory


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    checkpoint = write_vision_checkpoint(tmp_path_factory.mktemp("vision"))
    data = str(tmp_path_factory.mktemp("vision-data"))
    with running_server(checkpoint, "--allowed-media-hosts", "localhost", "--data-dir", data) as running:
        yield running


def picture(width: int = 64, height: int = 96, seed: int = 0) -> str:
    """A picture of width x height / 32**2 tokens."""
    return data_url(encoded(noise(width, height, seed=seed)))


def chat(*parts: Any, **fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=120)


def test_a_picture_becomes_its_placeholders(pictures: Server) -> None:
    body = chat("a", image(picture()), "b", image(picture(32, 32, seed=1)), "c", return_token_ids=True)
    answer = post(pictures, "/v1/chat/completions", body).json()
    ids = answer["prompt_token_ids"]
    text = post(pictures, "/detokenize", {"tokens": ids}).json()["prompt"]
    marks = "<|image_pad|>"
    assert text == f"<|start|>user\na{marks * 6}b{marks}c<|end|><|start|>assistant\n"
    assert ids.count(PAD) == 7
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(ids)
    assert usage["prompt_tokens_details"]["image_tokens"] == 7
    counted = post(pictures, "/tokenize", {"messages": body["messages"]}).json()
    assert counted["tokens"] == ids
    rendered = post(pictures, "/v1/chat/completions/render", body).json()
    assert rendered["token_ids"] == ids


def test_text_alone_is_as_before(pictures: Server) -> None:
    answer = post(pictures, "/v1/chat/completions", chat("a", "b", return_token_ids=True)).json()
    text = post(pictures, "/detokenize", {"tokens": answer["prompt_token_ids"]}).json()["prompt"]
    assert text == "<|start|>user\na\nb<|end|><|start|>assistant\n"
    assert "image_tokens" not in answer["usage"]["prompt_tokens_details"]


def test_openais_client(pictures: Server) -> None:
    client = openai.OpenAI(base_url=f"{pictures.url}/v1", api_key="x", max_retries=0)
    parts: Any = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": picture()}}]
    messages: Any = [{"role": "user", "content": parts}]
    whole = client.chat.completions.create(model="fake", messages=messages, max_tokens=4)
    assert whole.usage is not None
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="fake", messages=messages, max_tokens=4, stream=True, stream_options=options
    )
    last = list(stream)[-1]
    assert last.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    items: Any = [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "what?"},
                {"type": "input_image", "image_url": picture(), "detail": "low"},
            ],
        }
    ]
    first = client.responses.create(model="fake", input=items, max_output_tokens=4)
    assert first.usage is not None
    assert first.usage.input_tokens == whole.usage.prompt_tokens
    follow = client.responses.create(model="fake", input="and?", previous_response_id=first.id, max_output_tokens=4)
    assert follow.usage is not None
    assert follow.usage.input_tokens > first.usage.input_tokens + 6  # the stored response has its picture
    listed: Any = list(client.responses.input_items.list(first.id))
    assert listed[0].content[1].image_url == picture()


def test_anthropics_client(pictures: Server) -> None:
    client = anthropic.Anthropic(base_url=pictures.url, api_key="x", max_retries=0)
    data = base64.b64encode(encoded(noise(64, 96))).decode()
    source: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    messages: Any = [{"role": "user", "content": [source, {"type": "text", "text": "what?"}]}]
    answer = client.messages.create(model="fake", messages=messages, max_tokens=4)
    counted = client.messages.count_tokens(model="fake", messages=messages)
    assert answer.usage.input_tokens == counted.input_tokens
    plain: Any = [{"role": "user", "content": "what?"}]
    assert counted.input_tokens == client.messages.count_tokens(model="fake", messages=plain).input_tokens + 6
    result: Any = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "shot", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [source]}]},
    ]
    client.messages.create(model="fake", messages=result, max_tokens=4)
    bad: Any = [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]
    with pytest.raises(anthropic.BadRequestError, match="reads images of the types 'base64' and 'url', not 'file'"):
        client.messages.create(model="fake", messages=bad, max_tokens=4)


def cases() -> list[tuple[dict[str, Any], str, str]]:
    at = "messages[0].content[1].image_url"
    huge = data_url(encoded(Image.new("1", (20_000, 20_000))))
    cut = data_url(encoded(noise(64, 64))[:1000])
    return [
        (image("data:image/png;base64,AAAA"), at, "must be PNG, JPEG, WEBP, GIF"),
        (image(huge), at, "20000 x 20000"),
        (image(cut), at, "is damaged"),
        (image("http://example.org/a.png"), at, "--allowed-media-hosts does not have"),
        (image("http://localhost:1/a.png"), at, "outside the public Internet"),
        ({"type": "image_url"}, at, "is required"),
        ({"type": "input_audio", "input_audio": {}}, "messages[0].content[1].type", "only text parts here"),
    ]


@pytest.mark.parametrize(("part", "param", "reason"), cases(), ids=[each[2].split()[0] for each in cases()])
def test_a_bad_picture_is_a_400(pictures: Server, part: dict[str, Any], param: str, reason: str) -> None:
    answer = post(pictures, "/v1/chat/completions", chat("a", part))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert reason in error["message"]
    assert "base64" not in error["message"]


def test_a_redirect_to_this_host_is_never_followed(pictures: Server) -> None:
    """The host is allowed by its name, but its address is the server's own network."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    site = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    try:
        url = f"http://localhost:{site.server_address[1]}/a.png"
        assert post(pictures, "/v1/chat/completions", chat("a", image(url))).status_code == 400
        assert not asked
    finally:
        site.shutdown()
        site.server_close()


def test_the_number_of_pictures_is_limited(pictures: Server) -> None:
    answer = post(pictures, "/v1/chat/completions", chat(*[image(picture(32, 32))] * 17))
    assert answer.status_code == 400
    assert "17 pictures; the limit is 16 for one prompt (--limit-mm-per-prompt)" in answer.json()["error"]["message"]


def test_a_prompt_too_long_by_its_pictures_is_refused(pictures: Server) -> None:
    answer = post(pictures, "/v1/chat/completions", chat("x" * 300, *[image(picture(128, 128))] * 16))
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_mark_in_a_text_is_refused_beside_a_picture(pictures: Server) -> None:
    answer = post(pictures, "/v1/chat/completions", chat("<|image_pad|>", image(picture())))
    assert answer.status_code == 400
    assert "2 marks '<|image_pad|>' for 1 pictures" in answer.json()["error"]["message"]
    assert post(pictures, "/v1/chat/completions", chat("<|image_pad|>")).status_code == 200


def test_truncation_would_cut_pictures(pictures: Server) -> None:
    answer = post(pictures, "/v1/chat/completions", chat("a", image(picture()), truncate_prompt_tokens=5))
    assert answer.json()["error"]["param"] == "truncate_prompt_tokens"


def test_ids_of_a_prompt_have_no_pictures(pictures: Server) -> None:
    given = {"kv_transfer_params": {"prompt_token_ids": [1, 2]}}
    answer = post(pictures, "/v1/chat/completions", chat("a", image(picture()), **given))
    assert answer.json()["error"]["param"] == "kv_transfer_params.prompt_token_ids"


def test_terms_of_other_dialects(pictures: Server) -> None:
    """Errors name the field that the client has sent."""
    bad = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    body: dict[str, Any] = {"input": [{"role": "user", "content": [bad]}], "max_output_tokens": 4}
    assert post(pictures, "/v1/responses", body).json()["error"]["param"] == "input[0].content[0].image_url"
    body["input"][0]["content"] = [{"type": "input_image", "file_id": "f"}]
    assert post(pictures, "/v1/responses", body).json()["error"]["param"] == "input[0].content[0].file_id"
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "AAAA"}}
    answer = post(
        pictures, "/v1/messages", {"model": "fake", "messages": [{"role": "user", "content": [block]}], "max_tokens": 4}
    )
    assert answer.status_code == 400
    assert "messages[0].content[0]" in answer.json()["error"]["message"]


def test_a_model_of_text_names_itself(server: Server) -> None:
    answer = post(server, "/v1/chat/completions", chat("a", image(picture())))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[1].type"
    assert error["code"] == "unsupported_parameter"
    assert error["message"] == "messages[0].content[1].type is 'image_url'; Fake takes only text parts here."


def test_nothing_waits_for_large_pictures(pictures: Server) -> None:
    """While clients send the largest pictures, others are answered, and the log has none of the data."""
    large = data_url(encoded(noise(1200, 1200), "JPEG", quality=30), "image/jpeg")
    body = chat("a", image(large))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(post, pictures, "/v1/chat/completions", body) for _ in range(6)]
        while not all(each.done() for each in waiting):
            assert httpx.get(f"{pictures.url}/health", timeout=60).status_code == 200
            time.sleep(0.01)
        assert all(each.result().status_code == 200 for each in waiting)


@pytest.mark.slow
def test_the_process_of_pictures_ends_alone(pictures: Server) -> None:
    """A killed process is replaced, and the request is done in the new one."""
    assert post(pictures, "/v1/chat/completions", chat("a", image(picture()))).status_code == 200
    found = [
        each
        for each in psutil.Process(pictures.process.pid).children(recursive=True)
        if any("PIL/_imaging" in part.path for part in each.memory_maps())
    ]
    assert found
    for each in found:
        each.kill()
    assert post(pictures, "/v1/chat/completions", chat("a", image(picture()))).status_code == 200
