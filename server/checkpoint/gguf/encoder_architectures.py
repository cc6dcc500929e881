"""Rows of GGUF architectures with encoders, whose files have no layers for a task.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import Architecture, Config, keys
from .files import GgufFiles

POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}  # `pooling_type`
DENSE = "dense_2.weight"
GATE = "enc.blk.0.ffn_gate.weight"  # of networks with gates


def pooling_modules(files: GgufFiles) -> Config:
    """Return the files of sentence-transformers, by name, for the pooling that a file states; none where it does not.

    llama.cpp normalizes the vectors of every such model.
    """
    kind = POOLINGS.get(files.number("pooling_type") or 0)
    if DENSE in files.entries:
        raise files.error("layers after the pooling are not supported", DENSE)
    if kind is None:
        return {}
    names = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    types = {name: f"sentence_transformers.models.{name}" for name in names}
    modules = [{"idx": i, "type": types[name], "path": names[name]} for i, name in enumerate(names)]
    return {"modules.json": modules, "1_Pooling/config.json": {"pooling_mode": kind}}


_MODERN_BERT = keys(
    "attention.sliding_window=local_attention attention.sliding_window_pattern=global_attn_every_n_layers"
    " rope.freq_base=global_rope_theta rope.freq_base_swa=local_rope_theta"
)
_GEMMA = keys("rope.freq_base_swa=rope_local_base_freq")
_T5 = keys(
    "decoder_block_count=num_decoder_layers attention.relative_buckets_count=relative_attention_num_buckets"
    " decoder_start_token_id=decoder_start_token_id"
)

ENCODING = (
    Architecture(
        "bert",
        words={"bert.": ""},
        read=lambda files, _: {
            "architectures": ["BertForMaskedLM"],
            "type_vocab_size": files.metadata.get("tokenizer.ggml.token_type_count", 2),
        },
    ),
    Architecture(
        "nomic-bert",
        "nomic_bert",
        words={"nomic_bert.": ""},
        read=lambda files, _: {
            "architectures": ["NomicBertModel"],
            "type_vocab_size": files.metadata.get("tokenizer.ggml.token_type_count", 2),
        },
    ),
    Architecture(
        "modern-bert",
        "modernbert",
        _MODERN_BERT,
        words={"model.": ""},
        read=lambda files, _: {
            "architectures": ["ModernBertForMaskedLM"],
            "hidden_activation": files.metadata.get("modern-bert.hidden_activation", "gelu"),
        },
    ),
    Architecture(
        "gemma-embedding",
        "gemma3_text",
        _GEMMA,
        {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
        lambda _, config: {"query_pre_attn_scalar": config["head_dim"]},
        norm_shift=1.0,
    ),
    Architecture(
        "t5",
        "t5",
        _T5,
        read=lambda files, _: {"feed_forward_proj": "gated-gelu" if GATE in files.entries else "relu"},
        has_own_heads=True,
    ),
)
