"""Small encoder-decoders of transformers with random weights, of odd sizes, and their checkpoints."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from neuronserve.server.api.pipeline.sources import text_item
from neuronserve.server.types import Encoding
from tests.encoders import VOCAB

IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 0, "vocab_size": VOCAB}
T5 = {
    "d_model": 40,
    "d_kv": 16,
    "d_ff": 72,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "n_positions": 256,
}
BART = {
    "d_model": 45,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 70,
    "decoder_ffn_dim": 50,
    "max_position_embeddings": 256,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", T5),
    "t5-one-layer": ("t5", T5 | {"num_layers": 1, "num_decoder_layers": 1, "num_heads": 7, "d_kv": 9}),
    "flan-t5": ("t5", T5 | {"num_heads": 5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("bart", BART),
    "mbart": ("mbart", BART | {"scale_embedding": True, "encoder_layers": 1, "decoder_layers": 1}),
    "marian": ("marian", BART | {"d_model": 70, "encoder_attention_heads": 7, "decoder_attention_heads": 7}),
    "pegasus": ("pegasus", BART | {"d_model": 40, "encoder_attention_heads": 5, "decoder_attention_heads": 5}),
}


def random_model(name: str, **options: Any) -> Any:
    """transformers' model, every parameter drawn, so that none is neutral."""
    kind, known = KINDS[name]
    config = transformers.AutoConfig.for_model(kind, **(IDS | known | options))
    torch.manual_seed(1)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    if kind == "t5" and known.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        config.tie_word_embeddings = False
    return drawn(model)


def drawn(model: Any) -> Any:
    """The model with every parameter drawn. Positions by sines are not saved, so they stay."""
    kept = "embed_positions" if model.config.model_type == "marian" else "proj_out"
    with torch.no_grad():
        for parameter, values in model.named_parameters():
            if kept in parameter:
                continue
            is_gain = values.dim() == 1 and parameter.endswith("weight")
            scale = 0.2 if values.dim() == 1 else values[0].numel() ** -0.5
            values.copy_(is_gain + torch.randn_like(values) * scale)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
    return model


def logits(model: Any, source: list[int], decoder: list[int]) -> Any:
    """transformers' logits at each position of the decoder, [tokens, vocab]."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([decoder])).logits[0].numpy()


def engine_logits(engine: Any, source: list[int], decoder: list[int]) -> Any:
    """The logits of a loaded engine at each position of the decoder, [tokens, vocab]."""
    cache, item = engine.cache, text_item(source)
    blocks = tuple(cache.num_blocks + i for i in range(-(-len(source) // cache.block_size)))
    engine.runner.encoder.encode([Encoding(item.digest, item, blocks, "source")])
    return engine.runner.logits(decoder, media=(item,), encoded=blocks)
