"""A vision encoder beside transformers' on torch, in turns, on the same threads.

The encoder has the sizes of Qwen3-VL-2B's and random weights; of the text there is one layer. torch runs in float32 and
in bfloat16, and its better median counts. The error is the distance of the vectors from float32's, over their length.
usage: python -m benchmarks.pictures [--dtype bfloat16] [--quantization int8] [--side 384] [--rounds 5] [--threads N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers

from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.engine.vision.pictures import Pictures, load_pictures
from neuronserve.server.host.cpu_quota import host_threads
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.types import MediaItem

Rows = npt.NDArray[np.float32]
PATCH, MERGE = 16, 2
TEXT = {
    "vocab_size": 512,
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]},
}
ENCODER = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "patch_size": PATCH,
    "deepstack_visual_indexes": [5, 11, 17],
}


def write_model(directory: Path) -> torch.nn.Module:
    """Write a random model and return it, in float32."""
    config = transformers.Qwen3VLConfig(text_config=TEXT, vision_config=ENCODER, image_token_id=7)
    torch.manual_seed(0)
    model = transformers.Qwen3VLForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    return model


def picture(side: int) -> MediaItem:
    """Return a square picture of random patches."""
    rows = side // PATCH
    pixels = np.random.default_rng(0).normal(size=(rows * rows, 2 * 3 * PATCH * PATCH)).astype(np.float32)
    digest, count = sha256(pixels.tobytes()).digest(), rows * rows // MERGE**2
    return MediaItem(digest, 0, count, pixels.tobytes(), pixels.shape, grid=(1, rows, rows))


def load(directory: Path, types: tuple[str, str], threads: int, max_model_len: int) -> Pictures:
    settings = EngineSettings(
        model=str(directory),
        dtype=types[0],
        quantization=types[1],
        cpu_threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=1,
        max_num_batched_tokens=64,
    )
    config = settings.engine_config(directory)
    loaded = load_engine(config, lambda line: print(line, file=sys.stderr))
    load_pictures(config, loaded, lambda line: print(line, file=sys.stderr))
    assert isinstance(loaded.runner.encoder, Pictures)
    return loaded.runner.encoder


def compare(runs: Mapping[str, Callable[[], Rows]], rounds: int) -> None:
    """Print times and errors of `runs`, the first of which is this engine, the second torch in float32, in turns."""
    rows = {name: run() for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in sorted(runs, reverse=bool(number % 2)):
            begin = time.perf_counter()
            runs[name]()
            times[name].append(time.perf_counter() - begin)
    own, wide, *_ = runs
    medians = {name: statistics.median(each) for name, each in times.items()}
    for name, median in medians.items():
        error = np.linalg.norm(rows[name] - rows[wide]) / np.linalg.norm(rows[wide])
        print(f"{name:16} {median:8.3f} s   {min(times[name]):.3f} to {max(times[name]):.3f}   error {error:.4f}")
    print(f"ratio            {min(median for name, median in medians.items() if name != own) / medians[own]:8.2f}")


def with_types(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the flags that benchmarks of encoders share."""
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="of this engine")
    parser.add_argument("--quantization", default="none", choices=("none", "int8"), help="of this engine")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=host_threads())
    return parser


def main() -> None:
    parser = with_types(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--side", type=int, default=384, help="pixels of the picture's side")
    args = parser.parse_args()
    item, grid = picture(args.side), torch.tensor([[1, args.side // PATCH, args.side // PATCH]])
    pixels = torch.from_numpy(np.frombuffer(item.pixels, np.float32).reshape(item.shape).copy())
    torch.set_num_threads(args.threads)

    def vectors(encoder: torch.nn.Module, dtype: torch.dtype) -> Rows:
        with torch.inference_mode():
            found = encoder(pixels.to(dtype), grid)
            rows: Rows = torch.cat([found.pooler_output, *found.deepstack_features], 1).float().numpy()
        return rows

    with tempfile.TemporaryDirectory() as directory:
        whole = write_model(Path(directory)).model.visual
        pictures = load(Path(directory), (args.dtype, args.quantization), args.threads, max(1024, 4 * item.num_tokens))
        halves = type(whole)(whole.config).eval().to(torch.bfloat16)
        halves.load_state_dict(whole.state_dict())
        runs: dict[str, Callable[[], Rows]] = {
            "neuronserve": lambda: pictures.tower.encode(item),
            "torch float32": lambda: vectors(whole, torch.float32),
            "torch bfloat16": lambda: vectors(halves, torch.bfloat16),
        }
        compare(runs, args.rounds)


if __name__ == "__main__":
    main()
