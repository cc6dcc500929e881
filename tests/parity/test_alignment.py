"""Times of a transcript's tokens are those that transformers finds in the attention of the same heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.generation import GenerateEncoderDecoderOutput

from neuronserve.server.engine.cross.aligner import token_times
from neuronserve.server.types import Encoding, MediaItem, SamplingParams, ScheduledSeq, StepPlan, TranscriptRules
from tests.depth import representative
from tests.encoder_decoders import drawn
from tests.encoders import VOCAB, save
from tests.parity.test_encoder_decoders import engine

HEADS = ((0, 2), (2, 0), (2, 1))
SIZES = {"d_model": 42, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_layers": 1}
LAYERS = {"decoder_layers": 4, "encoder_ffn_dim": 70, "decoder_ffn_dim": 50, "max_source_positions": 100}
FIRST, POSITIONS, BLOCK = 4, 71, 16
PROMPT = tuple(np.random.default_rng(1).integers(4, VOCAB, 50).tolist())
CASES: list[tuple[int, dict[str, str]]] = [(1, {}), (2, {}), (4, {})] + [
    (2, {"dtype": "bfloat16", "kv_cache_dtype": kind}) for kind in ("bfloat16", "int8", "fp8")
]


@pytest.fixture(scope="module")
def model() -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2, "vocab_size": VOCAB}
    config = transformers.WhisperConfig(**ids, **SIZES, **LAYERS, max_target_positions=64)
    config._attn_implementation = "eager"
    torch.manual_seed(2)
    return drawn(transformers.WhisperForConditionalGeneration(config).eval())


@pytest.fixture(scope="module")
def features() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((80, 200)).astype(np.float32)


@pytest.fixture(scope="module")
def attention(model: Any, features: np.ndarray) -> Any:
    with torch.no_grad():
        given = {"input_features": torch.from_numpy(features)[None], "decoder_input_ids": torch.tensor([PROMPT])}
        return model(**given, output_attentions=True).cross_attentions


def expected(model: Any, attention: Any) -> list[float]:
    made = GenerateEncoderDecoderOutput(cross_attentions=(attention,), sequences=torch.tensor([PROMPT]))
    found = model._extract_token_timestamps(made, HEADS, num_frames=2 * POSITIONS, num_input_ids=FIRST)
    times: list[float] = found[0, FIRST:-1].tolist()  # the last is there twice
    return times


@pytest.mark.parametrize(("tp", "options"), representative(CASES, CASES[2], CASES[4]))
def test_times_are_those_of_transformers(
    model: Any, features: np.ndarray, attention: Any, tmp_path: Any, kernel_cache: str, tp: int, options: dict[str, str]
) -> None:
    """The prompt is computed in two chunks, and the first one may be cached."""
    rules = TranscriptRules(aligned_heads=HEADS, aligned=(FIRST, POSITIONS))
    item = MediaItem(b"x", 0, 100, features.tobytes(), features.shape)
    with engine(save(model, tmp_path / "whisper"), kernel_cache, tp, max_model_len=64, **options) as found:
        blocks = tuple(found.cache.num_blocks + i for i in range(-(-100 // BLOCK)))
        found.runner.encoder.encode([Encoding(item.digest, item, blocks, "a")])
        for start in (0, 30):
            seq = ScheduledSeq(
                "a",
                PROMPT[start : start + 30],
                start,
                [[1, 2, 3, 4]],
                start > 0,
                SamplingParams(1, temperature=0.0, transcript=rules),
                PROMPT,
                len(PROMPT),
                media=(item,),
                encoded=blocks,
            )
            result = found.runner.execute(StepPlan(0, (seq,), ()))
        times = np.frombuffer(result.sampled["a"].row, np.float32)
    want = np.array(expected(model, attention))
    if options:  # a rounded weight may turn the path, for a few tokens
        assert np.median(np.abs(times - want)) <= 0.04
    else:
        assert times == pytest.approx(want, abs=1e-6)
    assert len(set(want)) > 10


@pytest.mark.parametrize("shape", [(1, 2), (1, 40), (9, 3), (30, 5), (5, 5)], ids=str)
def test_short_sound_and_short_texts(model: Any, shape: tuple[int, int]) -> None:
    tokens, positions = shape
    weights = np.random.default_rng(tokens).random((2, tokens, positions), np.float32)
    attention = tuple(torch.from_numpy(weights)[None] for _ in range(LAYERS["decoder_layers"]))
    made = GenerateEncoderDecoderOutput(cross_attentions=(attention,), sequences=torch.zeros(1, tokens))
    want = model._extract_token_timestamps(made, [(0, 0), (1, 1)], num_input_ids=0)[0, :-1]
    assert token_times(weights) == pytest.approx(want.numpy(), abs=1e-6)
