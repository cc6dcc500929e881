"""Models that see pictures: logits of prompts with pictures are those of transformers, however they are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.encode.runner import SharedRunner
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.vision.pictures import load_pictures
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.encodings import EncodingBooks, EncodingLimits, EncodingScheduler
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Encoding, MediaItem, Request, SamplingParams
from tests.depth import representative
from tests.engine.mailbox import Mailbox, run_all
from tests.parity.vision_models import MODELS, TOKEN, random_picture, random_vision_model

TOLERANCE = 1e-5  # largest error over largest value
GRIDS: dict[str, list[tuple[int, int, int]]] = {
    "smolvlm": [(2, 6, 6), (1, 6, 6)],
    "idefics3": [(2, 6, 6)],
    "gemma3": [(1, 6, 6), (1, 6, 6)],
    "mistral3": [(1, 6, 8), (1, 4, 2)],
    "gemma4": [(1, 6, 9), (1, 3, 6)],
    "llama4": [(3, 6, 6), (1, 6, 6)],
    "llava-clip": [(1, 6, 6), (1, 6, 6)],
    "llava-siglip": [(1, 6, 6)],
    "llava-pixtral": [(1, 6, 8), (1, 4, 2)],
}
OF_QWEN = [(1, 6, 4), (1, 10, 14), (1, 2, 2)]
MERGE = {"smolvlm": 3, "gemma3": 2, "gemma4": 3, "llava-clip": 1, "llava-siglip": 1, "llava-pixtral": 1}
OF_ANY_SIZE, OF_ONE_SIZE = ("mistral3", "llava-pixtral"), ("gemma3", "llama4", "llava-clip", "llava-siglip")
WHOLE = ("gemma3", "gemma4")  # tokens of a picture see each other, so no step divides it


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """Name -> transformers' model and its directory."""

    @cache
    def make(name: str) -> tuple[Any, Path]:
        directory = tmp_path_factory.mktemp(name)
        return random_vision_model(name, directory), directory

    return make


def engine_with_pictures(
    directory: Path, kernels: str, tp: int = 1, chunk: int = 64, **more: Any
) -> tuple[LoadedEngine, EncodingLimits]:
    config = EngineConfig(
        model_path=str(directory),
        device="inf2.48xlarge",
        tensor_parallel_size=tp,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=chunk,
        max_num_queued_reqs=2,
        block_size=16,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=None,
        cpu_threads=2,
        kernel_cache_dir=kernels,
        **more,
    )
    loaded = load_engine(config, lambda _: None)
    pictures = load_pictures(config, loaded, lambda _: None)
    assert pictures is not None
    return loaded, pictures


@pytest.fixture(scope="module")
def engine_of(model_of: Any, kernel_cache: str) -> Callable[..., tuple[LoadedEngine, EncodingLimits]]:
    """(name, tensor_parallel_size, chunk, further fields) -> a loaded engine with its encoder."""

    @lru_cache(maxsize=3)
    def load(name: str, tp: int = 1, chunk: int = 64, **more: Any) -> tuple[LoadedEngine, EncodingLimits]:
        return engine_with_pictures(model_of(name)[1], kernel_cache, tp, chunk, **more)

    return load


def item_of(name: str, grid: tuple[int, int, int], offset: int, seed: int = 0) -> MediaItem:
    pixels = random_picture(name, grid, seed)
    count = int(np.prod(grid)) // MERGE.get(name, 2) ** 2
    digest = sha256(pixels.tobytes() + bytes(grid)).digest()
    return MediaItem(digest, offset, count, pixels.tobytes(), pixels.shape, grid=grid)


def pixels_of(item: MediaItem) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(item.pixels, np.float32).reshape(item.shape).copy())


def places_of(item: MediaItem) -> torch.Tensor:
    """Return column and row of each patch."""
    return torch.cartesian_prod(*(torch.arange(size) for size in item.grid[1:])).flip(1)


def prompt_of(name: str) -> tuple[tuple[int, ...], tuple[MediaItem, ...]]:
    """A prompt with text before, between and after its pictures."""
    rng, ids, media = np.random.default_rng(3), list[int](), list[MediaItem]()
    for i, grid in enumerate(GRIDS.get(name, OF_QWEN)):
        ids += rng.integers(8, 101, 5 + i).tolist()
        media.append(item_of(name, grid, len(ids), i))
        ids += [TOKEN] * media[-1].num_tokens
    return (*ids, *rng.integers(8, 101, 9).tolist()), tuple(media)


def vectors_of(model: Any, name: str, item: MediaItem) -> list[np.ndarray]:
    """Vectors of a picture by transformers: for the embedding, then for each tap."""
    pixels, inner = pixels_of(item), getattr(model, "model", model)
    if name.startswith("qwen"):
        found = inner.get_image_features(pixels, torch.tensor([item.grid]), return_dict=True)
        taps = [torch.cat(list(each)) for each in getattr(found, "deepstack_features", None) or []]
        return [each.numpy() for each in (torch.cat(list(found.pooler_output)), *taps)]
    if name == "gemma4":
        return [
            inner.get_image_features(pixels[None], places_of(item)[None], return_dict=True).pooler_output[0].numpy()
        ]
    if name == "llama4":
        states = inner.get_image_features(pixels, return_dict=True).last_hidden_state
        return [inner.multi_modal_projector(states).reshape(-1, 48).numpy()]
    if name in OF_ANY_SIZE:
        size = torch.tensor([[4 * item.grid[1], 4 * item.grid[2]]])
        found = inner.get_image_features(pixels, image_sizes=size, return_dict=True)
    else:
        found = inner.get_image_features(pixels if name in OF_ONE_SIZE else pixels[None], return_dict=True)
    return [torch.cat([each.reshape(-1, 48) for each in found.pooler_output]).numpy()]


def logits_of(model: Any, name: str, ids: tuple[int, ...], media: tuple[MediaItem, ...]) -> np.ndarray:
    """Logits of a prompt by transformers."""
    given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    pixels = [pixels_of(item) for item in media]
    types = (given["input_ids"] == TOKEN).int()
    if name.startswith("qwen"):
        grids = torch.tensor([item.grid for item in media])
        given |= {"pixel_values": torch.cat(pixels), "image_grid_thw": grids, "mm_token_type_ids": types}
    elif name == "gemma4":
        pad = torch.nn.utils.rnn.pad_sequence
        places = pad([places_of(item) for item in media], batch_first=True, padding_value=-1)
        given |= {
            "pixel_values": pad(pixels, batch_first=True),
            "image_position_ids": places,
            "mm_token_type_ids": types,
        }
    elif name in OF_ANY_SIZE:
        whole = max(4 * max(item.grid[1:]) for item in media)
        padded = [
            torch.nn.functional.pad(each, (0, whole - each.shape[3], 0, whole - each.shape[2])) for each in pixels
        ]
        sizes = torch.tensor([[4 * item.grid[1], 4 * item.grid[2]] for item in media])
        given |= {"pixel_values": torch.cat(padded), "image_sizes": sizes}
    elif name in OF_ONE_SIZE:
        given |= {"pixel_values": torch.cat(pixels)} | ({"token_type_ids": types} if name in WHOLE else {})
    else:
        given |= {"pixel_values": torch.cat(pixels)[None]}
    values: np.ndarray = model(**given).logits[0].numpy()
    return values


def encoded_logits(
    loaded: LoadedEngine, pictures: EncodingLimits, ids: tuple[int, ...], media: tuple[MediaItem, ...]
) -> np.ndarray:
    """Logits of a prompt, whose pictures are encoded first."""
    books = EncodingBooks(pictures)
    assert books.hold({item.digest: item for item in media})
    loaded.runner.encoder.encode([Encoding(item.digest, item, books.kept[item.digest], "prompt") for item in media])
    encoded = [block for item in media for block in books.kept[item.digest]]
    found: np.ndarray = loaded.runner.logits(ids, media=media, encoded=encoded)
    return found


def error_of(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_vectors_of_a_picture_are_those_of_transformers(model_of: Any, engine_of: Any, name: str) -> None:
    model, (loaded, _) = model_of(name)[0], engine_of(name)
    width = loaded.placement.buffers.widths.hidden
    for item in prompt_of(name)[1]:
        assert loaded.runner.encoder.tower.refusal(item) is None
        got = loaded.runner.encoder.tower.encode(item).reshape(item.num_tokens, -1, width)
        for section, expected in enumerate(vectors_of(model, name, item)):
            assert error_of(got[:, section, :48], expected) <= TOLERANCE
        assert not got[:, :, 48:].any()


@pytest.mark.parametrize("name", representative(list(MODELS), "qwen3-vl"))
def test_int8_covers_the_encoder_unless_its_modules_are_left_out(model_of: Any, engine_of: Any, name: str) -> None:
    """An error of 5 % of the vectors' length is what int8 adds to networks of 36 to 48 elements; left out, none."""
    model, item = model_of(name)[0], prompt_of(name)[1][0]
    expected = vectors_of(model, name, item)[0]

    def error(**more: Any) -> float:
        loaded, _ = engine_of(name, quantization="int8", **more)
        width = loaded.placement.buffers.widths.hidden
        got = loaded.runner.encoder.tower.encode(item).reshape(item.num_tokens, -1, width)[:, 0, :48]
        return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))

    assert TOLERANCE < error() <= 0.05
    assert error(modules_to_not_convert=("visual", "vision_tower", "vision_model")) <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("tp", "chunk"), [(1, 64), (2, 16), (4, 64)])
def test_logits_of_a_prompt_with_pictures_are_those_of_transformers(
    model_of: Any, engine_of: Any, name: str, tp: int, chunk: int
) -> None:
    chunk = 64 if name in WHOLE else chunk  # `logits` divides by number alone
    model, (loaded, pictures) = model_of(name)[0], engine_of(name, tp, chunk)
    ids, media = prompt_of(name)
    got = encoded_logits(loaded, pictures, ids, media)
    assert error_of(got, logits_of(model, name, ids, media)) <= TOLERANCE
    without = tuple(8 if token == TOKEN else token for token in ids)
    expected = model(input_ids=torch.tensor([without])).logits[0].numpy()
    assert error_of(loaded.runner.logits(without), expected) <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_a_picture_of_another_form_is_refused(engine_of: Any, name: str) -> None:
    tower, item = engine_of(name)[0].runner.encoder.tower, prompt_of(name)[1][0]
    for wrong in (
        replace(item, num_tokens=item.num_tokens + 1),
        replace(item, pixels=item.pixels[:-4]),
        replace(item, shape=(0, *item.shape[1:]), pixels=b""),
        replace(item, grid=(1, 1 << 20, 1 << 20), shape=(*item.shape[:-1], 1 << 20)),
    ):
        assert tower.refusal(wrong)


def engine_tokens(
    engine: tuple[LoadedEngine, EncodingLimits],
    requests: list[Request],
    chunk: int,
    num_blocks: int = 64,
    num_vectors: int = 1000,
) -> tuple[Mailbox, KVCacheManager, EncodingScheduler]:
    loaded, pictures = engine
    config = replace(loaded.scheduler, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 3))
    cache = KVCacheManager(replace(loaded.cache, num_blocks=num_blocks, enable_prefix_caching=True))
    limits = replace(pictures, num_blocks=num_vectors, max_num_tokens=chunk)
    scheduler = EncodingScheduler(Scheduler(config, cache), limits)
    runner = SharedRunner(loaded.runner, loaded.beside.runner)
    return run_all(scheduler, runner, requests), cache, scheduler


def request_of(name: str, ids: tuple[int, ...], media: tuple[MediaItem, ...], **fields: Any) -> Request:
    """A request that never samples the token of pictures, of which transformers then wants vectors."""
    sampling = SamplingParams(max_tokens=18, temperature=0.0, ignore_eos=True, logit_bias=((TOKEN, -1000.0),))
    return Request(name, ids, sampling, 0.0, media=media, **fields)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3-vl", "qwen2.5-vl", "mistral3")]
    + ["smolvlm", "gemma3"],
)
def test_generated_tokens_do_not_depend_on_chunks_batches_or_preemption(
    model_of: Any, engine_of: Any, name: str
) -> None:
    model, engine = model_of(name)[0], engine_of(name)
    ids, media = prompt_of(name)
    other = (*ids[:4], 9, *ids[4:])
    moved = tuple(replace(item, offset=item.offset + 1) for item in media)
    again = request_of("again", ids, media)
    requests = [
        request_of("first", ids, media),
        request_of("text", ids[:3], ()),
        request_of("second", other, moved),
        again,
        request_of("goes on", ids, media, generated_token_ids=(11, 12)),
    ]
    expected = {request.request_id: greedy(model, name, request) for request in requests if request is not again}
    expected["again"] = expected["first"]
    preempted, all_vectors = 0, sum(item.num_tokens for item in media)
    one = ((len(ids) + 18) // 16 + 1) * len(engine[0].cache.groups)  # blocks of a sequence
    tight = [(64, num_blocks, 1000) for num_blocks in range(one + 2, 2 * one + 1)]
    least, odd = (11, 12) if name in WHOLE else (1, 7)  # 11: nine tokens of a picture and two that decode
    for chunk, num_blocks, num_vectors in ((least, 64, 1000), (odd, 64, all_vectors), *tight):
        mailbox, cache, scheduler = engine_tokens(engine, requests, chunk, num_blocks, num_vectors)
        assert (mailbox.tokens, mailbox.errors) == (expected, {})
        preempted += mailbox.num_preempted
        assert cache.pool.num_free == num_blocks - 1
        assert not scheduler.open_ids
    assert preempted


def greedy(model: Any, name: str, request: Request) -> list[int]:
    ids, tokens = (*request.prompt_token_ids, *request.generated_token_ids), list[int]()
    for _ in range(request.sampling.max_tokens - len(request.generated_token_ids)):
        if request.media:
            row = logits_of(model, name, (*ids, *tokens), request.media)[-1]
        else:
            row = model(input_ids=torch.tensor([(*ids, *tokens)])).logits[0, -1].numpy()
        tokens.append(int(np.delete(row, TOKEN).argmax()))
        tokens[-1] += tokens[-1] >= TOKEN
    return tokens


def test_blocks_are_shared_only_behind_the_same_pictures(engine_of: Any) -> None:
    engine = engine_of("qwen3-vl")
    ids, media = prompt_of("qwen3-vl")
    others = (item_of("qwen3-vl", media[0].grid, media[0].offset, seed=77), *media[1:])
    alone = engine_tokens(engine, [request_of("other", ids, others)], 64)[0].tokens["other"]
    mailbox, cache, scheduler = engine_tokens(
        engine, [request_of("first", ids, media), request_of("other", ids, others), request_of("same", ids, media)], 64
    )
    assert mailbox.tokens["other"] == alone
    assert mailbox.tokens["same"] == mailbox.tokens["first"]
    cached = {event.request_id: event.num_cached_tokens for event in mailbox.events}
    assert cached["other"] == 0  # the first picture begins in the first block
    assert cached["same"] == (len(ids) - 1) // cache.config.block_size * cache.config.block_size
    assert (scheduler.books.num_queries, scheduler.books.num_hits) == (9, 5)


def test_a_cached_prefix_may_end_in_a_picture_whose_tokens_see_each_other(engine_of: Any) -> None:
    ids, media = prompt_of("gemma3")
    longer, moved = (*ids[:3], *ids), (replace(media[0], offset=media[0].offset + 3),)
    assert moved[0].offset < 16 < moved[0].offset + moved[0].num_tokens
    ends = [(*longer[:17], end, *longer[19:23]) for end in (30, 40)]
    first, second = (request_of(str(end[17]), end, moved) for end in ends)
    alone = engine_tokens(engine_of("gemma3"), [second], 64)[0].tokens["40"]
    mailbox, _, _ = engine_tokens(engine_of("gemma3"), [first, second], 64)
    assert mailbox.tokens["40"] == alone
    assert {event.num_cached_tokens for event in mailbox.events if event.request_id == "40"} == {16}


def test_a_picture_that_no_step_has_room_for_ends_its_request(engine_of: Any) -> None:
    ids, media = prompt_of("gemma3")
    large = item_of("gemma3", (7, 6, 6), media[0].offset)
    request = request_of("large", (*ids[: large.offset], *[TOKEN] * large.num_tokens, 9), (large,))
    assert "has room for 61" in engine_tokens(engine_of("gemma3"), [request], 64)[0].errors["large"]


def test_pictures_that_the_prompt_has_no_place_for_end_their_request_alone(engine_of: Any) -> None:
    ids, media = prompt_of("qwen3-vl")
    short = request_of("short", ids[: media[0].offset + 1], media[:1])
    mailbox, _, _ = engine_tokens(engine_of("qwen3-vl"), [short, request_of("fine", ids, media)], 64)
    assert "placeholders" in mailbox.errors["short"]
    assert len(mailbox.tokens["fine"]) == 18
