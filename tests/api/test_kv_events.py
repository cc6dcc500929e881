"""KV events over ZeroMQ: a router that follows them knows what each engine has cached. Decoded as vLLM's classes do."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.serving import PATIENCE_S, ROOT, Server, environment, run_command, running_server, until
from tests.api.test_pictures import picture, write_vision_checkpoint

zmq = pytest.importorskip("zmq")
BLOCK = 32
END = (1 << 64) - 1
LOOPBACK = {"endpoint": "tcp://127.0.0.1:0", "replay_endpoint": "tcp://127.0.0.1:0", "enable_kv_cache_events": True}


# The fields and their defaults of vLLM 0.33, vllm/distributed/kv_events.py.
class Event(msgspec.Struct, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(Event):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODE = msgspec.msgpack.Decoder(Batch).decode


def options(**config: Any) -> tuple[str, str]:
    return "--kv-events-config", json.dumps(LOOPBACK | config)


class Router:
    """Subscriber to one engine, which asks for what it has missed."""

    def __init__(self, server: Server, rank: int = 0, topic: str = "") -> None:
        self.endpoints = re.findall(rf"KV events of engine {rank} at (\S+)", server.log)
        self.context = zmq.Context()
        self.sub, self.req = self.context.socket(zmq.SUB), self.context.socket(zmq.DEALER)
        self.sub.subscribe(topic.encode())
        for each, endpoint in zip((self.sub, self.req), self.endpoints, strict=False):
            each.rcvtimeo, each.linger = PATIENCE_S * 1000, 0
            each.connect(endpoint)
        self.payloads: dict[int, bytes] = {}
        self.blocks: dict[bytes | int, BlockStored] = {}  # by hash, an event of this block alone
        self.copies: dict[str, set[bytes | int]] = {}  # hashes by medium

    def receive(self) -> tuple[bytes, int, Batch]:
        """The next message."""
        topic, number, payload = self.sub.recv_multipart()
        self.payloads[int.from_bytes(number, "big")] = payload
        return topic, int.from_bytes(number, "big"), DECODE(payload)

    def replay(self, first: int) -> list[tuple[int, bytes]]:
        """All batches from a number on that the publisher has."""
        self.req.send_multipart([b"", first.to_bytes(8, "big")])
        replies = []
        while True:
            delimiter, number, payload = self.req.recv_multipart()
            assert (delimiter, len(number)) == (b"", 8)
            if int.from_bytes(number, "big") == END:
                assert payload == b""
                return replies
            replies.append((int.from_bytes(number, "big"), payload))

    def catch_up(self) -> list[Any]:
        """Take what has been published, which is everything that an answered request has changed; return the events."""
        events = []
        for number, payload in self.replay(len(self.payloads)):
            assert number == len(self.payloads)
            self.payloads[number] = payload
            events += DECODE(payload).events
        for event in events:
            self.take(event)
        return events

    def take(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        match event:
            case AllBlocksCleared():
                self.blocks.clear()
                self.copies.clear()
            case BlockStored(medium=str(medium)) if medium != "GPU":
                assert (event.parent_block_hash, event.token_ids, event.block_size) == (None, [], BLOCK)
                self.copies.setdefault(medium, set()).update(event.block_hashes)
            case BlockRemoved(medium=str(medium)) if medium != "GPU":
                assert self.copies[medium] >= set(event.block_hashes)
                self.copies[medium].difference_update(event.block_hashes)
            case BlockRemoved(block_hashes=hashes):
                for each in hashes:
                    del self.blocks[each]
            case BlockStored():
                assert (event.medium, event.block_size, len(event.extra_keys or [])) == (
                    *("GPU", BLOCK, len(event.block_hashes)),
                )
                parent = event.parent_block_hash
                for i, each in enumerate(event.block_hashes):
                    tokens, keys = event.token_ids[i * BLOCK : (i + 1) * BLOCK], (event.extra_keys or [])[i : i + 1]
                    single = {"block_hashes": [each], "parent_block_hash": parent, "token_ids": tokens}
                    self.blocks[each] = msgspec.structs.replace(event, **single, extra_keys=keys)
                    parent = each

    def cached(self, tokens: list[int], salt: str | None = None) -> int:
        """Tokens of the longest known prefix; the last token is always computed."""
        parent, count = None, 0
        while (count + 1) * BLOCK < len(tokens):
            wanted = tokens[count * BLOCK : (count + 1) * BLOCK]
            keys = [(salt,)] if salt and parent is None else [None]
            known = (parent, wanted, keys)
            found = [
                each
                for each, event in self.blocks.items()
                if (event.parent_block_hash, event.token_ids, event.extra_keys) == known
            ]
            if not found:
                break
            parent, count = found[0], count + 1
        return count * BLOCK

    def close(self) -> None:
        self.context.destroy(linger=0)


@contextmanager
def router(server: Server, rank: int = 0, topic: str = "") -> Iterator[Router]:
    made = Router(server, rank, topic)
    try:
        yield made
    finally:
        made.close()


def ask(server: Server, prompt: str, **more: Any) -> int:
    """Tokens of the prompt that were cached."""
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True, **more}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text
    return int((reply.json()["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def tokens_of(server: Server, prompt: str) -> list[int]:
    reply = httpx.post(f"{server.url}/tokenize", json={"prompt": prompt, "add_special_tokens": False})
    return list(reply.json()["tokens"])


def text(number: int, length: int) -> str:
    return "".join(chr(97 + (i * (2 * number + 1)) % 26) for i in range(length))


def test_a_router_knows_what_every_prompt_finds(checkpoint: Path) -> None:
    asked = [(0, 300, None), (0, 200, None), (1, 300, None), (1, 300, "mine"), (0, 300, None), (2, 420, None)]
    asked += [(1, 300, "mine"), (3, 400, None), (0, 100, None), (3, 290, None), (1, 300, "mine"), (1, 300, None)]
    with running_server(checkpoint, *options(), "--num-gpu-blocks-override", "24") as server, router(server) as seen:
        until(lambda: [type(each) for each in seen.catch_up()] == [AllBlocksCleared])  # an earlier server's blocks
        found = []
        for number, length, salt in asked:
            prompt, more = text(number, length), {} if salt is None else {"cache_salt": salt}
            expected = seen.cached(tokens_of(server, prompt), salt)
            assert ask(server, prompt, **more) == expected
            found.append(expected)
            seen.catch_up()
        assert 0 < found.count(0) < len(found)
        assert any(b"BlockRemoved" in payload for payload in seen.payloads.values()), "nothing was evicted"
        kinds = {(each.group_idx, each.kv_cache_spec_kind, each.lora_name) for each in seen.blocks.values()}
        assert kinds == {(0, "full_attention", None)}
        httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
        until(lambda: bool(seen.catch_up()))
        assert not seen.blocks
        assert ask(server, text(1, 300)) == 0


def test_a_router_knows_what_the_tiers_have(checkpoint: Path, tmp_path: Path) -> None:
    few = "--num-gpu-blocks-override", "24"
    tiers = "--kv-offloading-size", "0.00003", "--kv-offloading-dir", str(tmp_path)  # 32 kB are 75 copies
    with running_server(checkpoint, *options(), *few, *tiers) as server, router(server) as seen:
        found: set[bytes | int] = set()
        for number in range(13):
            ask(server, text(number, 400))
            seen.catch_up()
            found |= seen.blocks.keys()
        assert seen.copies["CPU"] | seen.copies["STORAGE"] == found - seen.blocks.keys()
        assert 0 < len(seen.copies["CPU"]) < 80
        assert not seen.copies["CPU"] & seen.copies["STORAGE"]
        httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
        until(lambda: bool(seen.catch_up()))
        assert not seen.copies


def test_parts_of_blocks_are_found_and_not_published(checkpoint: Path) -> None:
    with running_server(checkpoint, *options(), "--device", "parts") as server, router(server) as seen:
        assert ask(server, text(0, 310)) == 0
        seen.catch_up()
        assert seen.cached(tokens_of(server, text(0, 310))) == 288
        assert ask(server, text(0, 310)) == 309
        assert ask(server, text(0, 310)[:141] + "#") == 141


def test_a_gap_is_replayed_as_far_as_batches_are_kept(checkpoint: Path) -> None:
    with running_server(checkpoint, *options(buffer_steps=6)) as server:
        ask(server, text(0, 100))
        with router(server) as seen:
            number = -1
            for i in range(100):  # a subscription takes a moment
                ask(server, text(i + 1, 40 + i))
                if seen.sub.poll(50):
                    _, number, _ = seen.receive()
                    break
            assert number > 0, "the first batch was before the subscription"
            missed = seen.replay(0)
            assert [each for each, _ in missed] == [*range(max(0, missed[-1][0] - 5), missed[-1][0] + 1)]
            assert dict(missed)[number] == seen.payloads[number]
            assert seen.replay(missed[-1][0] + 1) == []
            for wrong in ([b"", b"abc"], [b"", b"", b""], [b"x"]):
                seen.req.send_multipart(wrong)
            assert seen.replay(0) == missed


def test_each_engine_has_its_port_and_rank_and_a_new_one_begins_empty(checkpoint: Path, tmp_path: Path) -> None:
    port = free_pair()
    endpoint = {"endpoint": f"tcp://127.0.0.1:{port}", "topic": "kv@pod@fake"}
    more = ("--data-parallel-size", "2", "--data-dir", str(tmp_path))
    with running_server(checkpoint, *options(**endpoint), *more) as server:
        for rank, pid in enumerate(server.engine_pids):
            with router(server, rank, "kv@pod") as seen:
                assert seen.endpoints[0] == f"tcp://127.0.0.1:{port + rank}"
                prompt = text(rank, 100)
                url, headers = f"{server.url}/v1/completions", {"X-data-parallel-rank": str(rank)}
                httpx.post(url, json={"prompt": prompt, "max_tokens": 1}, headers=headers).raise_for_status()
                seen.catch_up()
                assert seen.cached(tokens_of(server, prompt)) == 96
                assert {DECODE(each).data_parallel_rank for each in seen.payloads.values()} == {rank}
                os.kill(pid, signal.SIGKILL)
                until(lambda seen=seen: bool(seen.catch_up()))  # type: ignore[misc]
                assert not seen.blocks
                topic, number, batch = seen.receive()
                assert (topic, batch.data_parallel_rank) == (b"kv@pod@fake", rank)
                assert seen.payloads[number] in dict(seen.replay(0)).values()


def free_pair() -> int:
    """A port that is free as the next one is."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second:
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def test_pictures_are_extra_keys_of_the_blocks_that_they_lie_in(tmp_path: Path) -> None:
    server_options = ("--data-dir", str(tmp_path / "data"), *options())
    with (
        running_server(write_vision_checkpoint(tmp_path / "vision"), *server_options) as server,
        router(server) as seen,
    ):
        part = {"type": "image_url", "image_url": {"url": picture(256, 512)}}  # 128 tokens at most
        words = {"type": "text", "text": "x" * 100}
        body = {"messages": [{"role": "user", "content": [words, part, words]}], "max_tokens": 1, "cache_salt": "s"}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert reply.status_code == 200, reply.text
        seen.catch_up()
        keys = [each.extra_keys for each in seen.blocks.values()]
        assert keys[0] == [("s",)]
        with_pictures = [(i, each[0][0]) for i, each in enumerate(keys[1:], 1) if each and each[0]]
        assert with_pictures
        assert len({digest for _, (digest, _) in with_pictures}) == 1
        assert len({i * BLOCK + offset for i, (_, offset) in with_pictures}) == 1, "not one position"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ('{"enable_kv_cache_events": true, "buffer": 3}', "object contains unknown field `buffer`"),
        ("[]", "expected `object`, got `array`"),
        ('{"endpoint": "inproc://cache"}', "kv_events_config.endpoint is 'inproc://cache': expected `str` matching"),
        ('{"publisher": "kafka"}', "kv_events_config.publisher is 'kafka': expected 'null' or 'zmq'"),
        ('{"hwm": -1}', "kv_events_config.hwm is -1: expected `int` >= 0"),
        ('{"topic": 3}', "kv_events_config.topic is 3: expected `str`"),
    ],
)
def test_what_cannot_be_published_is_refused(checkpoint: Path, config: str, problem: str) -> None:
    done = run_command("serve", str(checkpoint), "--data-parallel-size", "2", "--kv-events-config", config)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


def test_a_port_in_use_and_a_missing_package_end_the_start(checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = run_command("serve", str(checkpoint), "--port", "0", *options(endpoint=endpoint))
    assert done.returncode == 2
    assert f"--kv-events-config: cannot use {endpoint}: Address already in use" in done.stderr
    (tmp_path / "sitecustomize.py").write_text('import sys; sys.modules["zmq"] = None')
    env = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = run_command("serve", str(checkpoint), "--port", "0", *options(), env=env)
    assert done.returncode == 2
    assert "needs pyzmq, not installed: install neuronserve[events]" in done.stderr
