"""Choice of the loader by a model's files, and an encoder as an engine: cores, account, steps, rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from neuronserve.server.config import DataParallel, EngineConfig, LoraConfig
from neuronserve.server.engine.serving import is_pooling, load_served
from neuronserve.server.errors import DeviceMemoryError, SettingsError
from neuronserve.server.types import PoolingParams, SamplingParams, ScheduledSeq, StepPlan
from tests.encoders import FAMILIES, LONGEST, loaded, random_model, save, write_json
from tests.engine.config import engine_config
from tests.engine.encode.test_encoder import texts

CAUSAL, CLASSIFIES = transformers.AutoModelForCausalLM, transformers.AutoModelForSequenceClassification


def config_of(directory: Path, kernel_cache: str, **changes: Any) -> EngineConfig:
    config = engine_config(
        directory,
        kernel_cache,
        device="inf2.48xlarge",
        dtype="float32",
        max_model_len=None,
        max_num_batched_tokens=256,
        block_size=32,
        num_blocks_override=None,
    )
    return replace(config, **changes)


def with_modules(directory: Path, mode: str) -> Path:
    """sentence-transformers' files: pooled by `mode`, normalized."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(directory / "modules.json", modules)
    write_json(directory / "1_Pooling" / "config.json", {"pooling_mode": mode})
    return directory


Checkpoint = Callable[..., Path]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return lambda name, kind=transformers.AutoModel: save(random_model(name, kind), tmp_path / name)


@pytest.mark.parametrize(
    ("name", "kind", "pools"),
    [
        ("bert", transformers.AutoModel, True),
        ("bert", CLASSIFIES, True),
        ("qwen3", CLASSIFIES, True),
        ("qwen3", CAUSAL, False),
        ("qwen3", transformers.AutoModel, True),
    ],
)
def test_files_say_what_a_model_is(checkpoint: Checkpoint, name: str, kind: Any, pools: bool) -> None:
    assert is_pooling(config_of(checkpoint(name, kind), "")) is pools


def test_modules_make_an_encoder_of_a_decoder_unless_another_is_asked_for(checkpoint: Checkpoint) -> None:
    config = config_of(with_modules(checkpoint("qwen3", CAUSAL), "lasttoken"), "")
    assert is_pooling(config)
    assert not is_pooling(replace(config, runner="generate"))
    assert is_pooling(replace(config_of(checkpoint("llama", CAUSAL), ""), runner="pooling"))


def plan_of(params: PoolingParams) -> StepPlan:
    seqs = tuple(
        ScheduledSeq(str(i), text.token_ids, 0, (), False, SamplingParams(0), (), 0, pooling=params)
        for i, text in enumerate(texts((9, 30, 1, 64)))
    )
    return StepPlan(1, seqs, (), is_pooled=True)


def test_a_decoder_with_modules_is_served_by_its_last_token(checkpoint: Checkpoint, kernel_cache: str) -> None:
    directory = with_modules(checkpoint("qwen3", CAUSAL), "lasttoken")
    served = load_served(config_of(directory, kernel_cache), lambda _: None)
    with loaded(directory, kernel_cache) as found:
        given = texts((9, 30, 1, 64))
        want, short = found.encoder.encode(given), found.encoder.shortened(found.encoder.encode(given), 5)
        raw, states = found.encoder.encode(given, is_raw=True), [found.encoder.states(text) for text in given]

    def rows(**params: Any) -> list[np.ndarray]:
        result = served.runner.submit(plan_of(PoolingParams(**params)))()
        return [np.frombuffer(result.rows[str(i)], np.float32) for i in range(4)]

    assert np.array_equal(rows(), want)
    assert np.array_equal(rows(dimensions=5), short)
    assert np.array_equal(rows(is_raw=True), raw)
    assert all(np.array_equal(row, each.ravel()) for row, each in zip(rows(is_token_wise=True), states, strict=True))
    pooling = served.info.pooling
    assert pooling is not None
    assert (pooling.pooling, pooling.is_normalized, pooling.notice) == (("lasttoken",), True, "")
    assert (served.info.generates, served.info.cache.num_blocks, served.cache) == (False, 0, None)
    assert (
        served.info.max_model_len
        == served.pooling.max_length
        == min(LONGEST, FAMILIES["qwen3"].options["max_position_embeddings"])
    )


def test_states_that_are_not_finite_have_no_row(checkpoint: Checkpoint, tmp_path: Path, kernel_cache: str) -> None:
    """Poison the state of one token: the other texts of the step keep their rows."""
    model = random_model("bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[77] = 3e38  # whose sum is infinite
    served = load_served(config_of(save(model, tmp_path / "nan"), kernel_cache), lambda _: None)
    good, bad = (
        ScheduledSeq(name, ids, 0, (), False, SamplingParams(0), (), 0, pooling=PoolingParams())
        for name, ids in (("good", (2, 10, 3)), ("bad", (2, 77, 3)))
    )
    result = served.runner.submit(StepPlan(1, (bad, good), (), is_pooled=True))()
    alone = served.runner.submit(StepPlan(2, (good,), (), is_pooled=True))()
    assert set(result.rows) == {"good"}
    assert result.rows["good"] == alone.rows["good"]


def test_engines_of_a_server_take_cores_one_after_the_other(checkpoint: Checkpoint, kernel_cache: str) -> None:
    config = config_of(checkpoint("bert"), kernel_cache, tensor_parallel_size=2, data_parallel=DataParallel(1, 2))
    served = load_served(config, lambda _: None)
    assert served.info.core_ids == (2, 3)
    assert served.info.core_names == ("ND 1:NC 0", "ND 1:NC 1")
    for memory in served.info.memory:
        assert memory.used["kv"] == 0
        assert 0 < memory.used["weights"] < memory.used["weights"] + memory.used["runtime"] < memory.budget


def test_what_an_encoder_has_no_use_for_is_refused(checkpoint: Checkpoint) -> None:
    config = config_of(checkpoint("bert"), "")
    with pytest.raises(SettingsError, match="enable_lora is for models that generate"):
        load_served(replace(config, lora=LoraConfig()), lambda _: None)
    with pytest.raises(DeviceMemoryError, match=r"does not fit on inf2\.48xlarge"):
        load_served(replace(config, device_memory_utilization=0.01), lambda _: None)
