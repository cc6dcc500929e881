"""A second model's drafts change no token, and are what that model generates, whatever it has missed of a sequence."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronserve.server.config.offload import OffloadConfig
from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.offload import offload
from neuronserve.server.engine.pool_blobs import PoolBlobs
from neuronserve.server.errors import DeviceMemoryError, SettingsError
from neuronserve.server.host.memory import GIB
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.drafts import model_speculator
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.speculative import SpeculativeScheduler, scheduler_of
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.types import Request, SamplingParams, StepPlan, StepResult
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox, run_all
from tests.engine.test_speculative_engine import num_accepted, outcome, samplings
from tests.engine.test_structured_engine import NUMBERS, WORDS
from tools.random_checkpoint.writer import Options, write_checkpoint

MOST = 5
PAIRS = [
    ("built-in", "built-in"),
    ("tiny-gemma2", "tiny-llama"),  # several groups of layers, of which one keeps all tokens
    ("tiny-qwen3-next", "tiny-gemma2"),  # states; windows of the draft model in a group that keeps all tokens
    thorough(("tiny-qwen2-moe", "tiny-qwen3")),
]


def checkpoint(shape: str, within: Path, **options: Any) -> Path:
    directory: Path = DEFAULT_MODEL
    if shape != "built-in":
        directory = within / f"{shape}-{len(list(within.iterdir()))}"
        write_checkpoint(shape, directory, Options(**options))
    return directory


def load(kernel_cache: str, directory: Path, draft: Path | None = None, **changes: Any) -> LoadedEngine:
    drafts = None if draft is None else SpeculationConfig("draft_model", MOST, model=str(draft))
    return load_engine(engine_config(directory, kernel_cache, speculation=drafts, **changes), lambda _: None)


class Watched:
    """A draft model whose drafts are kept, with the texts that they follow."""

    def __init__(self, engine: LoadedEngine) -> None:
        assert engine.runner.around is not None
        self._model, self.seen = engine.runner.around, list[tuple[list[int], tuple[int, ...]]]()

    def __call__(self, plan: StepPlan, compute: Callable[[StepPlan], StepResult]) -> StepResult:
        def noted(drafted: StepPlan) -> StepResult:
            with_some = [seq for seq in drafted.decode if seq.num_drafts]
            self.seen += [([*seq.history], seq.token_ids[-seq.num_drafts :]) for seq in with_some]
            return compute(drafted)

        return self._model(plan, noted)


@dataclasses.dataclass
class Pair:
    """A model with another one that drafts for it, and the other one alone."""

    engine: LoadedEngine
    alone: LoadedEngine
    watched: Watched

    def scheduler(self, is_drafted: bool, num_blocks: int = 64, budget: int = 96, *tiers: Any) -> Scheduler:
        speculation = self.engine.scheduler.speculation if is_drafted else None
        limits = dataclasses.replace(self.engine.scheduler, speculation=speculation, max_num_batched_tokens=budget)
        cache = dataclasses.replace(self.engine.cache, num_blocks=num_blocks * len(self.engine.cache.groups))
        made = scheduler_of(limits, KVCacheManager(cache, *tiers))
        if isinstance(made, SpeculativeScheduler):
            made._speculator._rate = 1.0
        return made

    def run(self, scheduler: Scheduler, requests: Sequence[Request]) -> Mailbox:
        self.watched.seen.clear()
        return run_all(scheduler, self.engine.runner, requests)

    def require_its_own_drafts(self, limit: int = 8) -> None:
        """Compare drafts after greedy texts with the other model's most likely tokens."""
        assert self.watched.seen
        for text, drafts in random.Random(0).sample(self.watched.seen, min(limit, len(self.watched.seen))):
            logits = self.alone.runner.logits([*text, *drafts])[:, : self.engine.spec.vocab_size]
            assert drafts == tuple(np.argmax(logits[len(text) - 1 : -1], axis=1))


@pytest.fixture(scope="module", params=PAIRS, ids=" with ".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str) -> Iterator[Pair]:
    within = tmp_path_factory.mktemp("pair")
    target, draft = (checkpoint(shape, within) for shape in request.param)
    engine, alone = load(kernel_cache, target, draft), load(kernel_cache, draft)
    engine.runner.around = watched = Watched(engine)
    yield Pair(engine, alone, watched)
    engine.runner.close()
    alone.runner.close()


@pytest.fixture(autouse=True)
def depths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose depths by chance, 0 often."""
    chance = random.Random(7)

    def any_depths(chances: Sequence[Sequence[float]], most: int, *_: object) -> list[int]:
        wanted = [chance.choice((0, chance.randint(0, len(each)))) for each in chances]
        return wanted if sum(wanted) <= most else [0] * len(wanted)

    monkeypatch.setattr(model_speculator, "common_depths", any_depths)


@settings(max_examples=12)
@given(
    prompts=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=60), min_size=1, max_size=6),
    data=st.data(),
    num_blocks=st.sampled_from([13, 24, 64]),
    budget=st.sampled_from([9, 40, 96]),
)
def test_drafts_change_nothing(
    pair: Pair, prompts: list[list[int]], data: st.DataObject, num_blocks: int, budget: int
) -> None:
    grammars = st.sampled_from(["", NUMBERS, WORDS] if pair.engine.spec.vocab_size > 256 else [""])
    some = [
        Request(
            f"r{i}", tuple(prompt), dataclasses.replace(data.draw(samplings), grammar=data.draw(grammars)), float(i)
        )
        for i, prompt in enumerate(prompts)
    ]
    plain = pair.run(pair.scheduler(False, num_blocks, budget), some)
    assert outcome(pair.run(pair.scheduler(True, num_blocks, budget), some)) == outcome(plain)


def asked(count: int, length: int = 16, max_tokens: int = 60) -> list[Request]:
    sampling = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
    return [Request(f"r{i}", tuple((5, 9, i, 7) * (length // 4)), sampling, float(i)) for i in range(count)]


def test_drafts_are_those_of_the_model_under_preemption_and_chunks(pair: Pair) -> None:
    drafted = pair.run(pair.scheduler(True, num_blocks=18, budget=24), asked(7))
    assert drafted.num_preempted > 0 or all(span.window for span in pair.engine.cache.groups)
    pair.require_its_own_drafts()


def test_what_the_draft_model_has_missed_is_computed_when_it_drafts(pair: Pair) -> None:
    scheduler = pair.scheduler(True)
    first = asked(2, 40, 40)
    assert isinstance(scheduler, SpeculativeScheduler)
    scheduler._speculator._most = 0
    written = pair.run(scheduler, first).tokens
    assert not pair.watched.seen, "these tokens are in the cache, computed by the model alone"
    scheduler._speculator._most = MOST
    again = [
        dataclasses.replace(each, request_id=f"again {i}", prompt_token_ids=(*each.prompt_token_ids, *written[f"r{i}"]))
        for i, each in enumerate(first)
    ]
    pair.run(scheduler, again)
    assert scheduler._cache.prefix_hits > 0
    pair.require_its_own_drafts()


def test_copies_of_blocks_have_both_models_keys_and_values(pair: Pair) -> None:
    engine, config = pair.engine, engine_config(Path("any"), "", offload=OffloadConfig(GIB), most_kept_bytes=0)
    states = engine.placement.buffers.states
    kinds = PoolBlobs.of(engine.placement.kv), None if states is None else PoolBlobs.states(states)
    tiers = offload(SharedFile("test", 0), kinds, config, engine.info, ())
    scheduler = pair.scheduler(True, 12, 96, tiers.blocks, tiers.states)
    (request,) = asked(1, 96, 8)
    first = pair.run(scheduler, [request])
    pair.run(scheduler, [dataclasses.replace(request, cache_salt="other", prompt_token_ids=(3, 4) * 60)])
    known = pair.watched._model._known  # type: ignore[attr-defined]
    known[:] = False  # of blocks that are on the device
    assert pair.run(scheduler, [request]).tokens == first.tokens
    assert scheduler._cache.num_loaded_tokens > 0
    pair.require_its_own_drafts()


def test_a_model_that_is_always_right_takes_fewer_steps(kernel_cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    engine = load(kernel_cache, DEFAULT_MODEL, DEFAULT_MODEL)
    sampling = SamplingParams(60, temperature=0.8, ignore_eos=True, presence_penalty=0.5)
    some = [Request(f"r{i}", (5, 9, i), dataclasses.replace(sampling, seed=i), float(i)) for i in range(3)]
    found = {}
    for drafts in (None, engine.scheduler.speculation):
        scheduler = scheduler_of(
            dataclasses.replace(engine.scheduler, speculation=drafts), KVCacheManager(engine.cache)
        )
        if isinstance(scheduler, SpeculativeScheduler):
            monkeypatch.setattr(scheduler._speculator, "observe", lambda *_: None)  # as if passes cost nothing
        found[drafts is not None] = run_all(scheduler, engine.runner, some)
    assert outcome(found[True]) == outcome(found[False])
    counts = [each.drafts for each in found[True].events if each.finish_reason is not None]
    assert all(verified == accepted for verified, accepted in counts), "sampling draws the same numbers in both models"
    assert num_accepted(found[True]) > 100
    assert found[True].num_turns < found[False].num_turns / 2
    engine.runner.close()


def test_the_account_names_the_draft_model(kernel_cache: str, tmp_path: Path) -> None:
    target, draft = checkpoint("tiny-llama", tmp_path), checkpoint("tiny-qwen3", tmp_path)
    plain, both, own = load(kernel_cache, target), load(kernel_cache, target, draft), load(kernel_cache, draft)
    of_plain, of_both, of_own = (each.ledger.entries(0) for each in (plain, both, own))
    added = {
        ("weights", "draft model"): of_own["weights", "weights"],
        ("kv", "draft model's part of the blocks"): of_own["kv", "blocks"],
    }
    scratch = {key: of_both[key] for key in of_both if key[0] == "scratchpad"}  # rows of logits for drafts
    assert of_both == dict(of_plain) | scratch | added
    for engine in (plain, both, own):
        engine.runner.close()
    with pytest.raises(DeviceMemoryError, match="does not fit"):
        load(kernel_cache, target, draft, device_memory_utilization=1e-4)


@pytest.mark.parametrize(
    ("draft", "changes", "words"),
    [
        ("tiny-llama", {}, r"has another tokenizer: token \d+ is .*, and the model's "),
        ("tiny-qwen3-next", {}, "is no decoder whose layers all have keys and values"),
        ("tiny-llama", {"max_model_len": 1024}, "it takes up to 512 tokens, and max_model_len is 1024"),
        ("missing", {}, "is no directory"),
    ],
)
def test_models_that_cannot_draft_are_refused(
    draft: str, changes: dict[str, Any], words: str, kernel_cache: str, tmp_path: Path
) -> None:
    path = tmp_path / "none" if draft == "missing" else checkpoint(draft, tmp_path)
    with pytest.raises(SettingsError, match=words):
        load(kernel_cache, DEFAULT_MODEL, path, **changes)
