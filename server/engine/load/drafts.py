"""Speculative decoding of a model: whether its steps can verify drafts, and the model that drafts for it, if any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...config import CacheConfig, EngineConfig
from ...config.formats import RequestedFormats
from ...cost.model import CostModel
from ...cost.pricer import StepPricer
from ...cost.shape import stored_dtype
from ...cost.speculation import METHODS, DraftCosts
from ...cost.stacks import STACKS
from ...cost.work import Runtime
from ...device.catalog import instance
from ...device.core import NeuronCore
from ...errors import CheckpointError, SettingsError
from ...kernels.workers import WorkerPool
from ...models.spec import ModelSpec
from ...placement.cache_layout import kv_slot_sizes
from ...placement.footprint import ServingShape
from ...placement.shard import ShardSpec
from ...text.tokenizer import load_tokenizer
from ..buffers import ActivationBuffers, ConstantTables, KVPool
from ..draft_model import DraftModel
from ..encode.distances import with_distances
from ..grammar_store import GrammarStore
from ..operands import Placement
from ..runner import ModelRunner
from .machine import Machine
from .model_source import ModelSource, open_model
from .weights import OnProgress, WeightLoader

NAME = "speculative_config"


def most_drafts(config: EngineConfig) -> int:
    """Return the most drafts of a step."""
    return 0 if config.speculation is None else config.speculation.most_drafts(config.max_num_seqs)


def usable_drafts(config: EngineConfig, spec: ModelSpec, on_progress: OnProgress) -> EngineConfig:
    """Return `config`, without speculation where the model has none, which a progress line says."""
    drafts = config.speculation
    if drafts is None:
        return config
    if spec.source is not None:
        on_progress(f"{NAME} is not used: {spec.architecture} has an encoder")
        return replace(config, speculation=None)
    if drafts.acceptance_rate is not None:
        on_progress(f"{NAME} is synthetic: drafts are accepted by chance. THE OUTPUT IS NOT THE MODEL'S")
    return config


def open_draft(
    config: EngineConfig, target: ModelSource, requested: RequestedFormats, shape: ServingShape
) -> tuple[DraftLoading | None, ServingShape]:
    """Open the draft model that `config` names, to guess tokens of `target`, which is served in `shape`.

    Returns None where none is named, and the shape with that model beside it. Raises SettingsError for a model that
    cannot draft for this one, and as `open_model`.
    """
    drafts = config.speculation
    if drafts is None or drafts.model is None:
        return None, shape
    path = Path(drafts.model)
    if not path.is_dir():
        raise SettingsError(f"{NAME}: model {drafts.model!r} is no directory")
    own = replace(requested, quantization=drafts.quantization, modules_to_not_convert=(), groups=None)
    model = open_model(path, own, config.tensor_parallel_size, config.cpu_threads)
    group = next((g for g, span in enumerate(shape.kv_groups(target.spec, 1).spans) if not span.window), None)
    if why := _refusal(model.spec, target.spec, shape.max_model_len, group):
        raise SettingsError(f"{NAME}: model {drafts.model!r} cannot draft: {why}")
    if why := _other_token(_tokens(path), _tokens(Path(config.tokenizer_path or config.model_path))):
        raise SettingsError(f"{NAME}: model {drafts.model!r} has another tokenizer: {why}")
    draft = DraftLoading(model, shape, group or 0, min(model.spec.vocab_size, target.spec.vocab_size))
    return draft, replace(shape, draft=draft.part)


def place_draft(draft: DraftLoading | None, cores: Sequence[NeuronCore], on_progress: OnProgress) -> None:
    """Load the weights of a draft model, if there is one. Raises CheckpointError or HostMemoryError."""
    if draft is not None:
        draft.place(cores, on_progress)


def beside_drafts(draft: DraftLoading | None, kv: KVPool, cache: CacheConfig) -> KVPool:
    """Return the pool with what its blocks hold of a draft model. Raises HostMemoryError."""
    return kv if draft is None else replace(kv, beside=draft.allocate(cache))


def add_drafts(
    draft: DraftLoading | None, machine: Machine, runner: ModelRunner, pricer: StepPricer, grammars: GrammarStore
) -> None:
    """Let a draft model, if there is one, draft for `runner`, and price its passes."""
    if draft is not None:
        runner.around = draft.model(machine, grammars, runner.pool)
        pricer.draft = draft.costs(machine.config)


def _refusal(draft: ModelSpec, target: ModelSpec, max_model_len: int, group: int | None) -> str:
    """Return why a model cannot draft; empty when it can."""
    if draft.source is not None or draft.state_mixer is not None or draft.vision is not None:
        return f"{draft.architecture} is no decoder whose layers all have keys and values"
    if draft.longest < max_model_len:
        return f"it takes up to {draft.longest} tokens, and max_model_len is {max_model_len}"
    if group is None:
        return f"no layers of {target.architecture} keep all tokens"
    return ""


def _tokens(directory: Path) -> list[str]:
    """Return a tokenizer's entries by their ids; none where no tokenizer can be read."""
    try:
        tokenizer = load_tokenizer(directory)
    except CheckpointError:
        return []
    return [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]


def _other_token(draft: Sequence[str], target: Sequence[str]) -> str:
    """Return the first token that differs between two tokenizers; empty when none does."""
    for i, (one, other) in enumerate(zip_longest(draft, target, fillvalue="")):
        if one != other:
            return f"token {i} is {one!r}, and the model's {other!r}"
    return ""


class DraftLoading:
    """Steps of the start of a draft model, between those of the model for which it drafts."""

    def __init__(self, model: ModelSource, shape: ServingShape, group: int, num_ids: int) -> None:
        """Prepare to load `model` beside a model with `shape`, whose table `group` keeps all tokens of a sequence.

        `num_ids` is the number of tokens that both models have.
        """
        self._model, self._spec, self._group, self._num_ids = model, model.spec, group, num_ids
        formats, limits = model.formats, shape.limits
        limits = replace(limits, num_samples=limits.num_seqs, num_drafts=0)
        own = {field.name: getattr(formats, field.name) for field in fields(formats)}
        self._shape = replace(shape, limits=limits, lora=None, fills_first_core=False, is_draft=True, **own)
        self.part = self._spec, self._shape  # of the other model's shape

    def place(self, cores: Sequence[NeuronCore], on_progress: OnProgress) -> None:
        """Load the weights, and allocate what passes work in. Raises CheckpointError or HostMemoryError."""
        self._cores, self._shard = cores, ShardSpec.of(self._spec, len(cores))
        loader = WeightLoader(self._model.source, self._spec, self._shard, cores, self._model.formats)
        self._weights = loader.load(on_progress)
        self._tables = ConstantTables(cores, self._spec, self._shard, self._shape.max_model_len)
        self._buffers = ActivationBuffers(cores, self._spec, self._shard, self._shape)

    def allocate(self, cache: CacheConfig) -> tuple[npt.NDArray[np.uint8], ...]:
        """Allocate the keys and values, and return all that the blocks of `cache` hold of this model."""
        groups, on = self._shape.kv_groups(self._spec, self._shard.tp), (self._spec, self._shard)
        sizes = kv_slot_sizes(*on, self._shape.kv_dtype, cache.block_size)
        kv = KVPool.allocate(self._cores, groups.places, cache.num_blocks, sizes)
        own = replace(cache, groups=groups.spans, num_states=0)
        known = self._cores[0].allocate("kv", "positions of drafts", cache.num_blocks * cache.block_size)
        self._known = known.array(np.bool_, cache.num_blocks, cache.block_size)
        at = *on, self._cores, self._weights, self._tables, self._buffers, kv, own
        placement = Placement(*at, self._shape.dtype, self._shape.kv_dtype)
        self._placement = with_distances(placement, self._shape.max_model_len)
        return (*kv.tensors, known.array(np.uint8, 1, cache.num_blocks, cache.block_size))

    def costs(self, config: EngineConfig) -> DraftCosts:
        """Return what this model adds to steps on the modelled accelerator."""
        assert config.speculation is not None
        dtype = stored_dtype(self._shape.quantization, self._shape.dtype)
        runtime = Runtime(dtype, is_continuous=STACKS[config.stack].is_continuous)
        model = CostModel.of(self._spec, instance(config.device), self._shard.tp, runtime)
        return DraftCosts(model, METHODS["draft_model"].runs(config.speculation.num_speculative_tokens))

    def model(self, target: Machine, grammars: GrammarStore, pool: WorkerPool) -> DraftModel:
        """Return the model, which computes on the threads of `pool`, as the machine of its target does."""
        config = replace(target.config, speculation=None)
        machine = Machine(config, self._shape, target.on_progress, pool, self._num_ids)
        runner = machine.runner(self._placement, None, grammars, None)
        runner.warm_up(config.fit_threads)
        return DraftModel(runner, self._group, self._known, self._spec.vocab_size)
