"""Speculative decoding of a model: whether its steps can verify drafts."""

from __future__ import annotations

from dataclasses import replace

from ...config import EngineConfig
from ...models.spec import ModelSpec
from .weights import OnProgress


def most_drafts(config: EngineConfig) -> int:
    """Return the most drafts of a step."""
    return 0 if config.speculation is None else config.speculation.most_drafts(config.max_num_seqs)


def usable_drafts(config: EngineConfig, spec: ModelSpec, on_progress: OnProgress) -> EngineConfig:
    """Return `config`, without speculation where the model has none, which a progress line says."""
    drafts = config.speculation
    if drafts is None:
        return config
    if spec.source is not None:
        on_progress(f"speculative_config is not used: {spec.architecture} has an encoder")
        return replace(config, speculation=None)
    if drafts.acceptance_rate is not None:
        on_progress("speculative_config is synthetic: drafts are accepted by chance. THE OUTPUT IS NOT THE MODEL'S")
    return config
