"""The endpoints of llama.cpp's server over real sockets: their shapes, their names for what is shared, and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.serving import MAX_MODEL_LEN, Server, running_server, until
from tests.api.test_choices import MARKS

COMPLETION = "/completion"
BASE = {"prompt": "Once upon", "n_predict": 12, "seed": 3, "ignore_eos": True}


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http: httpx.Client, path: str, **body: Any) -> list[Any]:
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert "[DONE]" not in answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


def refusal(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("path", [COMPLETION, "/completions"])
def test_a_completion_has_the_text_of_openais_and_says_how_it_was_made(http: httpx.Client, path: str) -> None:
    found = post(http, path, **BASE, return_tokens=True, temperature=0.5, top_k=7, repeat_penalty=1.5)
    options = {"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.5, "return_token_ids": True}
    asked = {"prompt": "Once upon", "max_tokens": 12, "seed": 3, "ignore_eos": True, **options}
    choice = post(http, TEXT, **asked)["choices"][0]
    assert (found["content"], found["tokens"]) == (choice["text"], choice["token_ids"])
    assert (found["stop"], found["stop_type"], found["stopping_word"]) == (True, "limit", "")
    assert (found["tokens_evaluated"], found["tokens_predicted"], found["truncated"]) == (9, 12, False)
    assert (found["prompt"], found["model"]) == ("Once upon", "fake")
    settings = found["generation_settings"]
    expected = {"n_predict": 12, "seed": 3, "temperature": 0.5, "top_k": 7, "repeat_penalty": 1.5, "ignore_eos": True}
    assert expected.items() <= settings.items()
    assert all(entry["bias"] is None for entry in settings["logit_bias"])
    timings = found["timings"]
    assert (timings["prompt_n"] + timings["cache_n"], timings["predicted_n"]) == (9, 12)
    assert timings["prompt_ms"] > 0 < timings["predicted_per_second"]


def test_a_stream_has_the_same_text_and_ends_with_the_whole_answer(http: httpx.Client) -> None:
    whole = post(http, COMPLETION, **BASE)
    *chunks, last = events(http, COMPLETION, **BASE, timings_per_token=True)
    assert "".join(each["content"] for each in chunks) == whole["content"]
    assert [each["stop"] for each in (*chunks, last)] == [*(False for _ in chunks), True]
    assert sum(len(each["tokens"]) for each in chunks) == chunks[-1]["tokens_predicted"] == 12
    assert (last["content"], last["tokens"]) == ("", [])
    same = ("generation_settings", "stop_type", "tokens_predicted", "tokens_evaluated", "has_new_line", "prompt")
    for name in same:
        given = (
            {**last[name], "stream": False, "timings_per_token": False} if isinstance(last[name], dict) else last[name]
        )
        assert given == whole[name]
    assert all("timings" in each for each in chunks)


def test_an_output_says_what_ended_it(http: httpx.Client) -> None:
    text = post(http, COMPLETION, **BASE)["content"]
    stop = next(text[i : i + 2] for i in range(4, len(text) - 1) if text[i : i + 2].isprintable())
    cut = post(http, COMPLETION, **BASE, stop=[stop])
    assert (cut["stop_type"], cut["stopping_word"], cut["content"]) == ("word", stop, text.partition(stop)[0])
    full = post(http, COMPLETION, **{**BASE, "n_predict": -1})
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["tokens_evaluated"] + full["tokens_predicted"] == MAX_MODEL_LEN
    none = post(http, COMPLETION, **{**BASE, "n_predict": 0})
    assert (none["content"], none["tokens_predicted"]) == ("", 0)


def test_prompts_are_texts_objects_tokens_or_a_mixture_and_several_make_a_list(http: httpx.Client) -> None:
    tokens = post(http, "/tokenize", content="Once upon")["tokens"]
    forms = ["Once upon", {"prompt_string": "Once upon"}, tokens, [*tokens[:3], "e upon"], ["Once", *tokens[4:]][1:]]
    alone = post(http, COMPLETION, **BASE)["content"]
    found = post(http, COMPLETION, **{**BASE, "prompt": forms[:4]})
    assert [each["index"] for each in found] == [0, 1, 2, 3]
    assert {each["content"] for each in found} == {alone}
    assert all("timings" not in each for each in found)  # of four outputs together
    assert [each["content"] for each in post(http, COMPLETION, **{**BASE, "prompt": ["Once upon"]})] == [alone]
    assert len(post(http, COMPLETION, **BASE, n_cmpl=2)) == 2
    mixed = post(http, COMPLETION, **{**BASE, "prompt": [*tokens[:4], " upon"]})
    assert (mixed["content"], mixed["prompt"]) == (alone, "Once upon")


@pytest.mark.parametrize("prompt", [None, [], {}, "", 5, [True], [1.5], {"multimodal_data": ["x"]}, [[[1]]], [10**6]])
def test_other_prompts_are_refused_by_name(http: httpx.Client, prompt: Any) -> None:
    assert refusal(http, COMPLETION, **{**BASE, "prompt": prompt})["param"].startswith("prompt")


@pytest.mark.parametrize("is_stream", [False, True])
def test_probabilities_of_each_token(http: httpx.Client, is_stream: bool) -> None:
    if is_stream:
        *chunks, _ = events(http, COMPLETION, **BASE, n_probs=3)
        shown = [each for chunk in chunks for each in chunk["completion_probabilities"]]
    else:
        shown = post(http, COMPLETION, **BASE, n_probs=3)["completion_probabilities"]
    assert len(shown) == 12
    for each in shown:
        assert {"id", "token", "bytes", "logprob", "top_logprobs"} == set(each)
        assert len(each["top_logprobs"]) == 3
    assert "completion_probabilities" not in post(http, COMPLETION, **BASE)


def test_named_fields_alone_are_given(http: httpx.Client) -> None:
    found = post(http, COMPLETION, **BASE, response_fields=["content", "generation_settings/n_predict", "none/of", "x"])
    assert (set(found), found["generation_settings/n_predict"]) == ({"content", "generation_settings/n_predict"}, 12)


def test_biases_are_pairs_or_an_object_of_tokens_or_texts(http: httpx.Client) -> None:
    first = post(http, COMPLETION, **BASE, return_tokens=True)["tokens"][0]
    for bias in ([[first, False]], {str(first): -100}, [[first, -100.0]]):
        found = post(http, COMPLETION, **BASE, logit_bias=bias)
        assert {"token": first, "bias": -100.0} in found["generation_settings"]["logit_bias"]
    ids = post(http, "/tokenize", content="ab")["tokens"]
    settings = post(http, COMPLETION, **BASE, logit_bias=[["ab", -5]])["generation_settings"]
    assert [each["token"] for each in settings["logit_bias"][:2]] == ids
    assert refusal(http, COMPLETION, **BASE, logit_bias=[[1, "a"]])["param"] == "logit_bias"


@pytest.mark.parametrize(
    "given",
    [{"mirostat": 2}, {"xtc_probability": 0.5}, {"repeat_last_n": 64}, {"post_sampling_probs": True}, {"lora": [{}]}],
)
def test_samplers_that_are_not_offered_are_refused_by_name(http: httpx.Client, given: dict[str, Any]) -> None:
    error = refusal(http, COMPLETION, **BASE, **given)
    assert (error["param"], error["code"]) == (next(iter(given)), "unsupported_parameter")


def test_samplers_that_are_switched_off_are_taken(http: httpx.Client) -> None:
    off = {
        "mirostat": 0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "typical_p": 1.0,
        "top_n_sigma": -1,
        "lora": [],
    }
    assert post(http, COMPLETION, **BASE, **off, id_slot=0)["tokens_predicted"] == 12


def test_a_prompt_is_computed_anew_where_the_cache_is_not_wanted(http: httpx.Client) -> None:
    long = {**BASE, "prompt": "a fine day " * 12}
    post(http, COMPLETION, **long)
    assert post(http, COMPLETION, **long)["timings"]["cache_n"] > 0
    assert post(http, COMPLETION, **long, cache_prompt=False)["timings"]["cache_n"] == 0


def test_tokenize_and_detokenize_in_its_form(http: httpx.Client) -> None:
    found = post(http, "/tokenize", content="a€", with_pieces=True)["tokens"]
    assert [each["piece"] for each in found] == ["a", [0xE2], [0x82], [0xAC]]
    assert post(http, "/tokenize", content="") == {"tokens": []}
    ids = [each["id"] for each in found]
    assert post(http, "/detokenize", tokens=ids) == {"prompt": "a€", "content": "a€"}
    assert post(http, "/detokenize", tokens=ids, model="fake") == {"prompt": "a€"}
    assert refusal(http, "/tokenize", content="a", parse_special=False)["param"] == "parse_special"


def test_a_conversation_becomes_its_prompt(http: httpx.Client) -> None:
    found = post(http, "/apply-template", messages=HELLO)["prompt"]
    (rendered,) = [http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]]
    assert post(http, "/detokenize", tokens=rendered)["content"] == found
    without = post(http, "/apply-template", messages=HELLO, add_generation_prompt=False)["prompt"]
    assert found.startswith(without)
    assert found != without


def test_what_a_client_asks_first(http: httpx.Client) -> None:
    found = http.get("/props").json()
    assert found["default_generation_settings"]["n_ctx"] == MAX_MODEL_LEN
    assert found["default_generation_settings"]["params"]["temperature"] == 1.0
    assert (found["total_slots"], found["eos_token"], found["modalities"]["vision"]) == (64, "<|eos|>", False)
    assert "{% for m in messages %}" in found["chat_template"]
    assert "/" not in found["model_path"]  # where it lies is nobody's business
    assert http.get("/models").json() == http.get("/v1/models").json()


@pytest.mark.slow
def test_slots_are_busy_while_sequences_are_open(checkpoint: Path, hold: Path) -> None:
    with (
        running_server(checkpoint, "--device", f"hold:{hold}", "--max-num-seqs", "3") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):

        def busy() -> list[bool]:
            return [slot["is_processing"] for slot in http.get("/slots").json()]

        assert busy() == [False] * 3
        with http.stream("POST", COMPLETION, json={**BASE, "n_cmpl": 2, "n_predict": 50, "stream": True}) as answer:
            lines = answer.iter_lines()  # a generator that is dropped closes the stream
            next(lines)
            assert busy() == [True, True, False]
            hold.unlink()
        until(lambda: busy() == [False] * 3)


def test_chats_are_answered_without_the_prefix(server: Server) -> None:
    with openai.OpenAI(base_url=server.url, api_key="any") as client:
        made = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=4)  # type: ignore[arg-type]
    assert made.choices[0].message.role == "assistant"


@pytest.mark.slow
def test_keys_open_it_as_the_rest(checkpoint: Path) -> None:
    with (
        running_server(checkpoint, "--api-key", "s3cret") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for path in (COMPLETION, "/infill", "/embeddings", "/apply-template", "/chat/completions"):
            assert http.post(path, json={}).status_code == 401
        for path in ("/props", "/slots", "/models"):
            assert http.get(path).status_code == 401
        http.headers["Authorization"] = "Bearer s3cret"
        assert post(http, COMPLETION, **BASE)["tokens_predicted"] == 12


@pytest.fixture(scope="module")
def filling(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server of a model whose vocabulary has fill-in-the-middle tokens."""
    directory = tmp_path_factory.mktemp("filling") / "model"
    shutil.copytree(checkpoint, directory)
    file = directory / "tokenizer.json"
    text = file.read_text()
    for mark, name in MARKS.items():
        text = text.replace(mark, name)
    file.write_text(text)
    with running_server(directory) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


GAP = {"input_prefix": "def f(", "input_suffix": "return 1", "n_predict": 4}


def test_infill_writes_what_stands_between(filling: httpx.Client) -> None:
    found = post(filling, "/infill", **GAP)
    assert found["prompt"] == "<fim_prefix>def f(<fim_suffix>return 1<fim_middle>"
    assert found["tokens_predicted"] == 4
    files = [{"filename": "a.py", "text": "x = 1"}]
    begun = post(filling, "/infill", **GAP, prompt="a, ", input_extra=files)["prompt"]
    assert begun == "a.py\nx = 1\n<fim_prefix>def f(<fim_suffix>return 1<fim_middle>a, "
    for wrong in ({}, {"filename": 1, "text": "a"}, {"filename": "a"}):
        assert refusal(filling, "/infill", **GAP, input_extra=[wrong])["param"].startswith("input_extra")


def test_infill_is_refused_where_the_model_has_no_such_tokens(http: httpx.Client) -> None:
    assert refusal(http, "/infill", **GAP)["code"] == "unsupported_parameter"


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_embeddings_are_lists_of_vectors(real_server: Server, path: str) -> None:
    with httpx.Client(base_url=real_server.url, timeout=120) as http:
        usual = post(http, "/v1/embeddings", input=["a dog", "a cat"])["data"]
        found = post(http, path, content=["a dog", "a cat"])
        assert [each["embedding"] for each in found] == [[each["embedding"]] for each in usual]
        assert post(http, path, input="a dog")[0]["embedding"] == found[0]["embedding"]
        assert refusal(http, path)["param"] == "content"


@pytest.mark.parametrize("path", [CHAT, TEXT, COMPLETION])
def test_grammars_and_schemas_under_its_names_hold_everywhere(real_server: Server, path: str) -> None:
    with httpx.Client(base_url=real_server.url, timeout=120) as http:
        body = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}

        def text(**fields: Any) -> str:
            found = post(http, path, **body, max_tokens=40, **fields)
            if path == COMPLETION:
                return str(found["content"])
            choice = found["choices"][0]
            return str(choice["message"]["content"] if path == CHAT else choice["text"])

        assert text(grammar='root ::= "ab"{3,3}') == "ababab"
        assert json.loads(text(json_schema={"const": 42})) == 42
        for name, wrong in (("grammar", "root ::= this is (not"), ("json_schema", {"type": 123})):
            assert refusal(http, path, **body, **{name: wrong})["param"] == name
