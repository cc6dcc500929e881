"""Adapters over real sockets with OpenAI's client: listed, used, loaded, unloaded, refused; by two engines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.api.serving import Server, running_server, until
from tests.api.test_kv_events import BLOCK, options, router
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.writer import Options, write_checkpoint

KEY = "secret"
PROMPT = list(range(40, 90))
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_checkpoint("tiny-qwen3", folder / "model", Options())
    for seed, name in enumerate(("sql", "chat", "more")):
        write_adapter(folder / name, adapter_tensors(folder / "model", 4 + seed, seed=seed))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, kernel_cache: str) -> Iterator[Server]:
    args = ("--lora-modules", f"sql={folder / 'sql'}", f'{{"name": "chat", "path": "{folder / "chat"}"}}')
    limits = ("--max-loras", "4", "--max-lora-rank", "8", "--max-num-seqs", "8", "--max-model-len", "256")
    rest = ("--data-parallel-size", "2", "--api-key", KEY, "--allow-runtime-lora-updating", *options())
    cache = ("--kernel-cache-dir", kernel_cache)
    with running_server(folder / "model", *args, *limits, *rest, *cache, program="neuronserve") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120, _strict_response_validation=True
    ) as made:
        yield made


def post(client: openai.OpenAI, path: str, **body: Any) -> httpx.Response:
    return client.post(path, body=body, cast_to=httpx.Response)


def load(client: openai.OpenAI, name: str, path: Path, **more: Any) -> httpx.Response:
    return post(client, "/load_lora_adapter", lora_name=name, lora_path=str(path), **more)


def unload(client: openai.OpenAI, name: str) -> httpx.Response:
    return post(client, "/unload_lora_adapter", lora_name=name)


def tokens(client: openai.OpenAI, model: str, count: int = 12, rank: int = 0) -> tuple[list[int], int]:
    """Return an engine's generated tokens, and how many tokens of the prompt it had cached."""
    answer = client.completions.create(
        model=model,
        prompt=PROMPT,
        max_tokens=count,
        temperature=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
        extra_headers={"X-data-parallel-rank": str(rank)},
    )
    assert answer.model == model
    assert answer.usage is not None
    cached = answer.usage.prompt_tokens_details
    ids: list[int] = answer.choices[0].token_ids  # type: ignore[attr-defined]
    return ids, cached.cached_tokens or 0 if cached is not None else 0


def test_adapters_are_listed_beside_their_model(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == ["fake", "sql", "chat"]
    assert [getattr(model, "parent", None) for model in listed.values()] == [None, "fake", "fake"]
    assert client.models.retrieve("sql").parent == "fake"  # type: ignore[attr-defined]


def test_a_request_gets_the_adapter_that_it_names(client: openai.OpenAI) -> None:
    found = {name: tokens(client, name, rank=0)[0] for name in ("fake", "sql", "chat")}
    assert len({tuple(ids) for ids in found.values()}) == 3
    assert {name: tokens(client, name, rank=1)[0] for name in found} == found
    with ThreadPoolExecutor(8) as threads:  # in one batch, in any order
        names = ["fake", "sql", "chat", "sql"] * 4
        assert list(threads.map(lambda name: tokens(client, name)[0], names)) == [found[name] for name in names]


def test_kv_events_name_the_adapter(client: openai.OpenAI, server: Server) -> None:
    for name in ("fake", "sql"):
        tokens(client, name, rank=1)
    with router(server, rank=1) as seen:
        seen.catch_up()
    found = [each for each in seen.blocks.values() if each.token_ids == PROMPT[:BLOCK]]
    keys = {each.lora_name: each.extra_keys for each in found}
    assert keys[None] == [None]
    assert keys["sql"] == [("sql",)]


def test_a_loaded_adapter_is_used_until_it_is_unloaded(client: openai.OpenAI, folder: Path) -> None:
    answer = load(client, "more", folder / "more")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'more' added successfully.")
    assert [model.id for model in client.models.list()] == ["fake", "sql", "chat", "more"]
    ids, _ = tokens(client, "more")
    assert ids == tokens(client, "more", rank=1)[0]
    assert ids not in (tokens(client, "fake")[0], tokens(client, "sql")[0])
    answer = unload(client, "more")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'more' removed successfully.")
    with pytest.raises(openai.NotFoundError) as caught:
        tokens(client, "more")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_other_files_under_one_name_find_no_block_of_the_old(client: openai.OpenAI, folder: Path) -> None:
    load(client, "more", folder / "more")
    old, _ = tokens(client, "more")
    assert tokens(client, "more") == (old, 49)  # its own blocks are found, the last one in part
    with pytest.raises(openai.BadRequestError, match="is loaded already"):
        load(client, "more", folder / "sql")
    unload(client, "more")
    load(client, "more", folder / "more")
    load(
        client, "more", write_adapter(folder / "new", adapter_tensors(folder / "model", 3, seed=77)), load_inplace=True
    )
    new, cached = tokens(client, "more")
    assert new != old
    assert cached == 0
    unload(client, "more")
    assert tokens(client, "sql")[0] == tokens(client, "sql", rank=1)[0]


def test_a_request_ends_with_the_adapter_that_it_began_with(client: openai.OpenAI, folder: Path) -> None:
    load(client, "more", folder / "more")
    whole, _ = tokens(client, "more", 150)
    first = threading.Event()
    got: list[int] = []

    def follow() -> None:
        body = {"return_token_ids": True, "ignore_eos": True}
        with openai.OpenAI(base_url=client.base_url, api_key=KEY, timeout=120) as lenient:  # to null finish_reasons
            stream = lenient.completions.create(
                model="more", prompt=PROMPT, max_tokens=150, temperature=0, stream=True, extra_body=body
            )
            for chunk in stream:
                got.extend(chunk.choices[0].token_ids if chunk.choices else ())  # type: ignore[attr-defined]
                first.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(120)
    unload(client, "more")
    load(client, "other", folder / "more")  # the same files: it is loaded twice for a moment
    thread.join()
    assert got == whole
    assert tokens(client, "other", 150)[0] == whole
    unload(client, "other")


def serves(client: openai.OpenAI, rank: int) -> bool:
    """Whether an engine takes requests."""
    try:
        tokens(client, "fake", rank=rank)
    except openai.InternalServerError:
        return False
    return True


def test_a_restarted_engine_has_the_adapters_again(client: openai.OpenAI, server: Server, folder: Path) -> None:
    load(client, "more", folder / "more")
    before = {name: tokens(client, name)[0] for name in ("fake", "sql", "more")}
    pids = set(server.engine_pids)
    answer = httpx.post(f"{server.url}/admin/restart-engine", headers={"Authorization": f"Bearer {KEY}"}, timeout=300)
    assert answer.status_code == 202, answer.text
    until(lambda: len(now := set(server.engine_pids)) == 2 and not now & pids)
    for rank in (0, 1):
        until(lambda: serves(client, rank))  # noqa: B023 - is called at once
        assert {name: tokens(client, name, rank=rank)[0] for name in before} == before
    unload(client, "more")


def bad(folder: Path, what: str) -> Path:
    """A directory that is no adapter of the model."""
    tensors, path = adapter_tensors(folder / "model", 4, ("q_proj",)), folder / what
    if what == "wide":
        return write_adapter(path, adapter_tensors(folder / "model", 9, ("q_proj",)))
    if what == "misshapen":
        name = f"{Q_PROJ}.lora_B.weight"
        return write_adapter(path, tensors | {name: np.zeros((7, 4), np.float32)})
    if what == "head":
        names = {f"base_model.model.lm_head.lora_{side}.weight": np.zeros((4, 4), np.float32) for side in "AB"}
        return write_adapter(path, tensors | names)
    return path  # nothing there


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("absent", "adapter_config.json: no such file"),
        ("wide", "q_proj has rank 9, more than max_lora_rank 8"),
        ("misshapen", rf"tensor {Q_PROJ}.lora_B.weight: shape is \[7, 4\], expected \[\d+, 4\]"),
        ("head", "lm_head.lora_A.weight: 'lm_head' is no module that can be adapted"),
    ],
)
def test_what_is_no_adapter_of_the_model_is_refused_with_the_reason(
    client: openai.OpenAI, folder: Path, what: str, reason: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        load(client, "bad", bad(folder, what))
    assert (caught.value.param, caught.value.type) == ("lora_path", "invalid_request_error")
    assert [model.id for model in client.models.list()] == ["fake", "sql", "chat"]


def test_names_and_slots_are_limited(client: openai.OpenAI, folder: Path) -> None:
    load(client, "more", folder / "more")
    for seed, name in enumerate(("fourth", "fifth")):
        write_adapter(folder / name, adapter_tensors(folder / "model", 3, seed=78 + seed))
    load(client, "fourth", folder / "fourth")
    with pytest.raises(openai.BadRequestError, match="all 4 adapters of max_loras are loaded"):
        load(client, "fifth", folder / "fifth")
    unload(client, "fourth")
    load(client, "again", folder / "more")  # needs no slot of its own
    with pytest.raises(openai.BadRequestError, match="is the name of the model itself"):
        load(client, "fake", folder / "more")
    unload(client, "again")
    assert tokens(client, "more")[0]
    unload(client, "more")
    for body in ({"lora_name": "x"}, {"lora_path": "/x"}, {"lora_name": "", "lora_path": "/x"}):
        with pytest.raises(openai.BadRequestError):
            post(client, "/load_lora_adapter", **body)
    with pytest.raises(openai.NotFoundError, match="There is no adapter 'more'"):
        unload(client, "more")


def test_a_key_is_needed_where_the_server_has_keys(server: Server, folder: Path) -> None:
    body = {"lora_name": "more", "lora_path": str(folder / "more")}
    for path in ("load_lora_adapter", "unload_lora_adapter"):
        assert httpx.post(f"{server.url}/v1/{path}", json=body).status_code == 401


@pytest.mark.slow
def test_adapters_neither_come_nor_go_without_the_flag(checkpoint: Path) -> None:
    with running_server(checkpoint) as fake:
        for path, body in (("load", {"lora_name": "x", "lora_path": "/x"}), ("unload", {"lora_name": "x"})):
            answer = httpx.post(f"{fake.url}/v1/{path}_lora_adapter", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "lora_updating_disabled")
