"""Heads of an odd number of elements against transformers; those that a rotation would turn in pairs are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Dtype, KVCacheDtype
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.families import model_spec_of
from tests.depth import representative
from tests.encoders import FAMILIES, VOCAB, loaded, random_model, save
from tests.parity.test_encoder_parity import FLOAT32_TOLERANCE, expected, has_types, texts, worst

# Mean error over mean logit.
KV_TOLERANCE: dict[KVCacheDtype, float] = {"float32": 1e-6, "bfloat16": 0.02, "int8": 0.03, "fp8": 0.06}
MAX_TOKENS = 192

BERTS = ("bert", "bert-relu", "roberta", "xlm-roberta", "mpnet")
SIZES = [(33, 3), (34, 2), (36, 4), (27, 3), (45, 3), (9, 1), (57, 3), (65, 5), (63, 7)]  # hidden size, heads
ENCODERS = [(name, {"hidden_size": size, "num_attention_heads": heads}) for name in BERTS for size, heads in SIZES]
ENCODERS += [("distilbert", {"dim": size, "n_heads": heads}) for size, heads in SIZES]
CASES = [(name, options, cores) for name, options in ENCODERS for cores in (1, 2)]


@pytest.mark.parametrize(("name", "options", "cores"), representative(CASES, *CASES[:3], *CASES[25::17]), ids=str)
def test_states_of_encoders_are_those_of_transformers(
    tmp_path: Path, kernel_cache: str, name: str, options: dict[str, int], cores: int
) -> None:
    model = random_model(name, **FAMILIES[name].options | options)
    directory = save(model, tmp_path / name)
    with loaded(directory, kernel_cache, tensor_parallel_size=cores) as found:
        for text in texts(has_types(name, model)):
            assert worst(found.encoder.states(text), expected(model, text)) <= FLOAT32_TOLERANCE


DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"n_embd": 27, "n_head": 3, "n_layer": 2, "n_positions": MAX_TOKENS}),
    ("gpt2", {"n_embd": 34, "n_head": 2, "n_layer": 2, "n_positions": MAX_TOKENS}),
    ("opt", {"hidden_size": 45, "num_attention_heads": 5, "ffn_dim": 60, "word_embed_proj_dim": 45}),
    ("opt", {"hidden_size": 51, "num_attention_heads": 3, "ffn_dim": 60, "word_embed_proj_dim": 20}),
    # Rotates a part of each head: 4 elements of 9.
    ("gpt_neox", {"hidden_size": 45, "num_attention_heads": 5, "intermediate_size": 80, "rotary_pct": 0.45}),
    ("phi", {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 80, "partial_rotary_factor": 0.4}),
]


def decoder(kind: str, options: dict[str, Any]) -> Any:
    """transformers' model with random weights, none of which is neutral."""
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    layers = {} if kind == "gpt2" else {"num_hidden_layers": 2, "max_position_embeddings": MAX_TOKENS}
    config = transformers.AutoConfig.for_model(kind, vocab_size=VOCAB, **ids, **layers, **options)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            is_gain = values.dim() == 1 and name.endswith("weight")
            values.copy_(is_gain + torch.randn_like(values) * 0.2)
    return model


@contextmanager
def engine(directory: Path, kernels: str, dtype: Dtype, kv: KVCacheDtype, size: int) -> Iterator[Any]:
    found = load_engine(
        EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=size,
            dtype=dtype,
            kv_cache_dtype=kv,
            max_model_len=MAX_TOKENS,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            max_num_queued_reqs=2,
            block_size=32,
            enable_prefix_caching=False,
            device_memory_utilization=0.9,
            num_blocks_override=16,
            cpu_threads=2,
            kernel_cache_dir=kernels,
        ),
        lambda _: None,
    )
    try:
        yield found
    finally:
        found.runner.close()


@pytest.mark.parametrize(("kind", "options"), DECODERS, ids=str)
def test_logits_of_decoders_are_those_of_transformers(
    tmp_path: Path, kernel_cache: str, kind: str, options: dict[str, Any]
) -> None:
    """Every format of the KV cache is tried; int8 is stored in pairs of elements."""
    model = decoder(kind, options)
    directory = save(model, tmp_path / kind)
    token_ids = np.random.default_rng(3).integers(0, VOCAB, 150).tolist()
    with torch.no_grad():
        want = model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()
    for kv, tolerance in KV_TOLERANCE.items():
        dtype: Dtype = "float32" if kv == "float32" else "bfloat16"
        for size in (1, 2):
            with engine(directory, kernel_cache, dtype, kv, size) as found:
                got = found.runner.logits(token_ids)
            assert np.abs(got - want).mean() <= tolerance * np.abs(want).mean(), (kv, size)


@pytest.mark.parametrize(
    ("architecture", "options", "reason"),
    [
        ("LlamaForCausalLM", {"hidden_size": 36, "num_attention_heads": 4}, "head_dim is 9: odd, but rotary"),
        ("Qwen3ForCausalLM", {"head_dim": 9}, "head_dim is 9: odd, but rotary"),
        ("GPTNeoXForCausalLM", {"hidden_size": 45, "num_attention_heads": 5, "rotary_pct": 1.0}, "head_dim is 9: odd"),
        ("GPTNeoXForCausalLM", {"hidden_size": 45, "num_attention_heads": 5, "rotary_pct": 0.4}, "turns 3 values of 9"),
        ("ModernBertModel", {"hidden_size": 27, "num_attention_heads": 3}, "head_dim is 9: odd, but rotary"),
        ("BertModel", {"hidden_size": 21, "num_attention_heads": 3}, "hidden_size is 21: less than 8 for each of 3"),
        ("GPT2LMHeadModel", {"n_embd": 21, "n_head": 3}, "less than 8 for each of 3 heads"),
    ],
)
def test_odd_heads_that_would_be_rotated_are_refused(architecture: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_spec_of({"architectures": [architecture]} | options)
    assert reason in str(refused.value)
