"""Whisper's encoder beside transformers' on torch, in turns, on the same threads.

The model has the sizes of whisper-small and random weights; of the decoder there is one layer, whose keys and values
both sides compute. usage: python -m benchmarks.sound [--dtype bfloat16] [--quantization int8] [--rounds 5]
[--threads N]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
import transformers

from benchmarks.pictures import Rows, compare, with_types
from neuronserve.server.engine.cross.encoder import SourceEncoder
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.types import Encoding, MediaItem
from tools.random_checkpoint.tokenizer import tokenizer_config, tokenizer_json

VOCAB, MELS, FRAMES, POSITIONS, TARGETS = 512, 80, 3000, 1500, 64
SIZES = {
    "d_model": 768,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_layers": 1,
    "decoder_attention_heads": 12,
    "decoder_ffn_dim": 768,
}


def write_model(directory: Path) -> torch.nn.Module:
    """Write a random model and return it, in float32."""
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 3)
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**ids, **SIZES, vocab_size=VOCAB, max_target_positions=TARGETS)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json(VOCAB)))
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(TARGETS)))
    return model


def load(directory: Path, args: argparse.Namespace) -> LoadedEngine:
    settings = EngineSettings(
        model=str(directory),
        dtype=args.dtype,
        quantization=args.quantization,
        cpu_threads=args.threads,
        max_num_seqs=1,
        max_num_batched_tokens=64,
    )
    return load_engine(settings.engine_config(directory), lambda line: print(line, file=sys.stderr))


def main() -> None:
    args = with_types(argparse.ArgumentParser(description=__doc__)).parse_args()
    features = np.random.default_rng(0).normal(size=(MELS, FRAMES)).astype(np.float32)
    item = MediaItem(sha256(features.tobytes()).digest(), 0, POSITIONS, features.tobytes(), features.shape)
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        model = write_model(Path(directory)).model
        loaded = load(Path(directory), args)
    encoder, cache = loaded.runner.encoder, loaded.cache
    assert isinstance(encoder, SourceEncoder)
    blocks = tuple(range(cache.num_blocks, cache.num_blocks - -POSITIONS // cache.block_size))
    assert encoder.stem is not None
    stream = encoder.stem._stream
    halves = type(model)(model.config).eval().to(torch.bfloat16)
    halves.load_state_dict(model.state_dict())

    def ours() -> Rows:
        encoder.encode([Encoding(item.digest, item, blocks, "bench")])
        return stream[:POSITIONS, : SIZES["d_model"]].copy()

    def torchs(whole: torch.nn.Module, dtype: torch.dtype) -> Rows:
        with torch.inference_mode():
            states = whole.encoder(torch.from_numpy(features)[None].to(dtype)).last_hidden_state
            for layer in whole.decoder.layers:
                layer.encoder_attn.k_proj(states), layer.encoder_attn.v_proj(states)
            rows: Rows = states[0].float().numpy()
        return rows

    runs = {
        "neuronserve": ours,
        "torch float32": lambda: torchs(model, torch.float32),
        "torch bfloat16": lambda: torchs(halves, torch.bfloat16),
    }
    compare(runs, args.rounds)


if __name__ == "__main__":
    main()
