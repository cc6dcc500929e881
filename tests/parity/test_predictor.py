"""Layers that predict a further token (MTP): their drafts are those of the formula in torch, and change no output."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.errors import CheckpointError, SettingsError
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.drafts import model_speculator
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.speculative import scheduler_of
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.types import Request, SamplingParams
from tests.api.serving import running_server
from tests.api.telemetry.scraping import scrape
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox, run_all
from tests.engine.test_draft_model import Watched
from tests.engine.test_speculative_engine import outcome
from tests.parity.latent_models import VOCAB, random_model, randomized, save

MOST = 3
CASES = [
    ("deepseek-v3", True, 1),
    ("deepseek-v3", False, 2),
    ("glm-4.7-flash", True, 2),
    ("glm-4.5", True, 1),
    ("qwen3-next", False, 2),
    ("qwen3.5", False, 1),
    thorough(("qwen3.6-moe", False, 1)),
]  # model, has a head of its own, tp


NAMES = {"last_norm.": "shared_head.norm.", "head.": "shared_head.head.", "block.": ""}
QWEN_NAMES = {
    "enorm.": "pre_fc_norm_embedding.",
    "hnorm.": "pre_fc_norm_hidden.",
    "eh_proj.": "fc.",
    "block.": "layers.0.",
    "last_norm.": "norm.",
}


class Predictor(nn.Module):  # type: ignore[misc]
    """The layer beside transformers' model, as vLLM computes it (deepseek_mtp.py and qwen3_next_mtp.py of its models).

    Qwen's attends, whatever the model's last layer does, and gives further drafts its normed state.
    """

    def __init__(self, model: Any, has_head: bool) -> None:
        super().__init__()
        (self._body, size), norm = (model.model, model.config.hidden_size), type(model.model.norm)
        self.enorm, self.hnorm, self.last_norm = (norm(size, model.config.rms_norm_eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        types = getattr(model.config, "layer_types", None) or ["full_attention"] * len(model.model.layers)
        like = max(i for i, kind in enumerate(types) if kind != "linear_attention")
        self.block = type(model.model.layers[like])(model.config, like)
        self.is_qwen = model.config.model_type.startswith("qwen")
        self.at = "mtp." if self.is_qwen else f"model.layers.{len(types)}."
        self.head = nn.Linear(size, VOCAB, bias=False) if has_head else model.lm_head

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the layer's tensors by their names in files."""
        names = QWEN_NAMES if self.is_qwen else NAMES
        own = {name: each for name, each in self.state_dict().items() if not name.startswith("_body")}
        found = {}
        for name, values in own.items():
            start = next((start for start in names if name.startswith(start)), "")
            found[self.at + names.get(start, "") + name.removeprefix(start)] = values.clone()
        return found

    def drafts(self, text: Sequence[int], count: int) -> list[int]:
        """Return the most likely drafts after `text`."""
        text, states = list(text), self._body(torch.tensor([text]), use_cache=False).last_hidden_state[:, :-1]
        known = len(text)
        while len(text) < known + count:
            embedded = self.enorm(self._body.embed_tokens(torch.tensor([text[1:]])))
            rows = self.eh_proj(torch.cat([embedded, self.hnorm(states)], dim=-1))
            places = torch.arange(rows.shape[1])[None]
            mask = torch.full((1, 1, rows.shape[1], rows.shape[1]), -torch.inf).triu(1)
            turns = self._body.rotary_emb(rows, places)
            own = self.block(rows, attention_mask=mask, position_ids=places, position_embeddings=turns)
            own = own[0] if isinstance(own, tuple) else own
            normed = self.last_norm(own[:, -1:])
            states = torch.cat([states, normed if self.is_qwen else own[:, -1:]], dim=1)
            text.append(int(self.head(normed[0, 0]).argmax()))
        return text[known:]


def written(model: Any, has_head: bool, directory: Path) -> Predictor:
    """Write the checkpoint of a model with a predictor, and return this."""
    save(model, directory)
    return add_predictor(model, has_head, directory)


def add_predictor(model: Any, has_head: bool, directory: Path) -> Predictor:
    """Write a predictor into the checkpoint of a model, and return it."""
    torch.manual_seed(2)
    predictor = Predictor(model, has_head)
    for module in (predictor.enorm, predictor.hnorm, predictor.last_norm, predictor.eh_proj, predictor.block):
        randomized(module)
    own = predictor.tensors()
    if not has_head:
        own = {name: each for name, each in own.items() if "head." not in name or "shared_head.norm" in name}
    save_file(load_file(directory / "model.safetensors") | own, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config))
    return predictor


def load(directory: Path, kernel_cache: str, tp: int = 1, **changes: Any) -> LoadedEngine:
    drafts = SpeculationConfig("mtp", MOST)
    config = engine_config(directory, kernel_cache, speculation=drafts, dtype="float32", **changes)
    config = dataclasses.replace(
        config, device="inf2.48xlarge", tensor_parallel_size=tp, max_num_seqs=4, allow_unsupported_types=True
    )
    return load_engine(config, lambda _: None)


@pytest.fixture(scope="module", params=CASES, ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str
) -> Iterator[tuple[LoadedEngine, Predictor, Watched]]:
    name, has_head, tp = request.param
    model, directory = random_model(name), tmp_path_factory.mktemp("mtp") / "model"
    predictor = written(model, has_head, directory)
    engine = load(directory, kernel_cache, tp)
    engine.runner.around = watched = Watched(engine)
    yield engine, predictor.eval(), watched
    engine.runner.close()


@pytest.fixture(autouse=True)
def depths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose depths by chance."""
    chance = random.Random(7)

    def any_depths(chances: Sequence[Sequence[float]], most: int, *_: object) -> list[int]:
        wanted = [chance.randint(0, len(each)) for each in chances]
        return wanted if sum(wanted) <= most else [0] * len(wanted)

    monkeypatch.setattr(model_speculator, "common_depths", any_depths)


def run(
    engine: LoadedEngine, requests: Sequence[Request], is_drafted: bool, num_blocks: int = 64, budget: int = 96
) -> Mailbox:
    cache = dataclasses.replace(engine.cache, num_blocks=num_blocks)
    config = dataclasses.replace(engine.scheduler, max_num_batched_tokens=budget)
    if not is_drafted:
        config = dataclasses.replace(config, speculation=None)
    scheduler: Scheduler = scheduler_of(config, KVCacheManager(cache))
    if is_drafted:
        scheduler._speculator._rate = 1.0  # type: ignore[attr-defined]
    return run_all(scheduler, engine.runner, requests)


def asked(sampling: Callable[[int], SamplingParams], count: int = 5) -> list[Request]:
    prompts = random.Random(3)
    lengths = [1, 40, 17, 70, 5, 33][:count]
    return [
        Request(f"r{i}", tuple(prompts.choices(range(VOCAB), k=length)), sampling(i), float(i))
        for i, length in enumerate(lengths)
    ]


def test_drafts_are_those_of_the_formula(pair: tuple[LoadedEngine, Predictor, Watched]) -> None:
    engine, predictor, watched = pair
    watched.seen.clear()
    run(engine, asked(lambda _: SamplingParams(24, temperature=0.0, ignore_eos=True)), True, budget=24)
    assert len(watched.seen) > 20
    with torch.inference_mode():
        for text, drafts in random.Random(5).sample(watched.seen, 20):
            assert list(drafts) == predictor.drafts(text, len(drafts))


@pytest.mark.parametrize("limits", [{}, {"num_blocks": 13, "budget": 9}], ids=str)
def test_drafts_change_nothing(pair: tuple[LoadedEngine, Predictor, Watched], limits: dict[str, int]) -> None:
    engine = pair[0]
    some = asked(lambda i: SamplingParams(30, temperature=0.8 * (i % 2), seed=i, logprobs=2, ignore_eos=True))
    assert outcome(run(engine, some, True, **limits)) == outcome(run(engine, some, False, **limits))


def test_models_without_the_layer_are_refused(tmp_path: Path, kernel_cache: str) -> None:
    with pytest.raises(SettingsError, match="has no layer that predicts further tokens"):
        load(DEFAULT_MODEL, kernel_cache)
    save(random_model("qwen3.5", mtp_num_hidden_layers=0), tmp_path / "none")
    with pytest.raises(SettingsError, match="has no layer that predicts further tokens"):
        load(tmp_path / "none", kernel_cache)
    save(random_model("deepseek-v3", num_nextn_predict_layers=1), tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.3\.enorm\.weight: missing"):
        load(tmp_path / "model", kernel_cache)


def test_a_server_drafts_and_answers_as_without(tmp_path: Path, kernel_cache: str) -> None:
    written(random_model("glm-4.5"), True, tmp_path / "model")
    flags = "--max-model-len", "192", "--dtype", "float32", "--kernel-cache-dir", kernel_cache
    method = '{"method": "deepseek_mtp", "num_speculative_tokens": 2}'
    body = {"model": "fake", "prompt": [5, 9, 7] * 9, "max_tokens": 90, "temperature": 0, "ignore_eos": True}
    found = []
    for options in ((), ("--speculative-config", method)):
        with running_server(tmp_path / "model", *flags, *options, program="neuronserve") as server:
            asked = body | {"return_token_ids": True}
            (choice,) = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=300).json()["choices"]
            found.append(choice["token_ids"])
            drafts = scrape(server.url)
    assert found[0] == found[1]
    assert drafts.value("vllm:spec_decode_num_draft_tokens_total") > 0
