"""Tiny encoders of every served family, made by transformers with random weights, and how they are loaded here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from neuronserve.server.config import EncodeConfig
from neuronserve.server.config.formats import Isa
from neuronserve.server.engine.encode.loading import LoadedEncoder, load_encoder
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.sources import load_settings

VOCAB, LONGEST = 120, 160
BERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 88,
    "max_position_embeddings": LONGEST,
}
DISTIL = {"vocab_size": VOCAB, "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 88}
AFTER_PADDING = BERT | {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1}
DECODER = BERT | {"num_key_value_heads": 2, "head_dim": 16}
DEBERTA = BERT | {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 16,
    "share_att_key": True,
    "position_biased_input": False,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}


@dataclass(frozen=True)
class Family:
    """A model_type of transformers, and what of its configuration is not default."""

    model_type: str
    options: dict[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "bert": Family("bert", BERT),
    "bert-relu": Family("bert", BERT | {"hidden_act": "relu", "hidden_size": 40, "num_attention_heads": 5}),
    "roberta": Family("roberta", AFTER_PADDING | {"type_vocab_size": 1}),
    "xlm-roberta": Family("xlm-roberta", AFTER_PADDING | {"layer_norm_eps": 1e-5}),
    "mpnet": Family("mpnet", AFTER_PADDING),
    "distilbert": Family("distilbert", DISTIL | {"max_position_embeddings": LONGEST, "activation": "gelu"}),
    "modernbert": Family("modernbert", BERT | {"local_attention": 24, "num_hidden_layers": 4, "pad_token_id": 0}),
    "modernbert-biases": Family(
        "modernbert",
        BERT | {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "local_attention": 9, "pad_token_id": 0},
    ),
    "albert": Family("albert", BERT | {"embedding_size": 20, "num_hidden_layers": 5, "num_hidden_groups": 2}),
    "albert-3-heads": Family("albert", BERT | {"embedding_size": 80, "hidden_size": 72, "num_attention_heads": 3}),
    "electra": Family("electra", BERT | {"embedding_size": 20}),
    "electra-1-layer": Family("electra", BERT | {"embedding_size": 48, "num_hidden_layers": 1}),
    "ernie": Family("ernie", BERT | {"use_task_id": True, "hidden_size": 56, "num_attention_heads": 7}),
    "nomic_bert": Family("nomic_bert", BERT | {"intermediate_size": 90}),
    "jina_embeddings_v3": Family("jina_embeddings_v3", BERT | {"hidden_size": 80, "num_attention_heads": 5}),
    "gte": Family("gte", BERT | {"type_vocab_size": 2, "hidden_size": 48, "num_attention_heads": 3}),
    "gte-no-types": Family("gte", BERT | {"type_vocab_size": 0}),
    "deberta-v2": Family("deberta-v2", DEBERTA),
    "deberta-v2-no-buckets": Family(
        "deberta-v2",
        DEBERTA
        | {"hidden_size": 45, "num_attention_heads": 5, "num_hidden_layers": 1, "type_vocab_size": 2}
        | {"position_biased_input": True, "position_buckets": -1, "max_relative_positions": 50},
    ),
    "qwen3": Family("qwen3", DECODER | {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}),
    # EmbeddingGemma: a decoder's layers whose tokens attend to both sides.
    "gemma3": Family(
        "gemma3_text",
        DECODER
        | {"use_bidirectional_attention": True, "sliding_window": 24, "query_pre_attn_scalar": 16}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "llama": Family("llama", DECODER | {"tie_word_embeddings": True}),
    # Embeddings narrower than the stream, and so are the last states.
    "opt-narrow": Family("opt", BERT | {"ffn_dim": 88, "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
}


def random_model(name: str, kind: Any = transformers.AutoModel, seed: int = 0, **options: Any) -> Any:
    """transformers' model, every parameter drawn, so that none is neutral."""
    family = FAMILIES[name]
    special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    config = transformers.AutoConfig.for_model(family.model_type, **({"pad_token_id": 0} | special | family.options))
    for key, value in options.items():
        setattr(config, key, value)
    torch.manual_seed(seed)
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, values in model.named_parameters():
            is_gain = values.dim() == 1 and parameter_name.endswith("weight")
            values.copy_(is_gain + torch.randn_like(values) * (0.2 if values.dim() == 1 else values.shape[-1] ** -0.5))
    return model


def save(model: Any, directory: Path) -> Path:
    """The checkpoint of a model, with a tokenizer that has a token for each printable character."""
    model.save_pretrained(directory)
    tiny_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def tiny_tokenizer() -> Tokenizer:
    """One token a word of one letter or more letters; [CLS] a [SEP] b [SEP], as BERT has it."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    vocab = {token: i for i, token in enumerate([*special, *words, *(f"##{word}" for word in words)][:VOCAB])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return tokenizer


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def config_of(directory: Path, kernel_cache: str, **changes: Any) -> EncodeConfig:
    """Return the command's default configuration, in float32 and with two threads."""
    fixed: dict[str, Any] = {
        "device": "inf2.48xlarge",
        "tensor_parallel_size": 1,
        "dtype": "float32",
        "max_model_len": None,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "device_memory_utilization": 0.9,
        "cpu_threads": 2,
        "kernel_checks": load_settings(EngineSettings, ()).kernel_checks,  # NEURONSERVE_KERNEL_CHECKS
    }
    return EncodeConfig(model_path=str(directory), kernel_cache_dir=kernel_cache, **fixed | changes)


@contextmanager
def loaded(directory: Path, kernel_cache: str, isa: Isa | None = None, **changes: Any) -> Iterator[LoadedEncoder]:
    """The encoder, for as long as it is needed."""
    found = load_encoder(config_of(directory, kernel_cache, **changes), lambda _: None, isa)
    try:
        yield found
    finally:
        found.encoder.close()
