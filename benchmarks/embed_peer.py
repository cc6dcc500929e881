"""sentence-transformers, or ONNX Runtime, in a process of its own, run by a Python that has them.

The interface is that of `benchmarks/worker.py`: one JSON line in, one line that begins with RESULT out. Both sort texts
by length and pad batches of 32, as sentence-transformers does by default. usage: python -m benchmarks.embed_peer
MODEL_DIR THREADS [MODEL.onnx]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embed_texts import NUM_TEXTS, make_texts

BATCH = 32
Encode = Callable[[list[str]], Any]


def with_torch(directory: str, threads: int) -> tuple[Encode, str]:
    """Return the model as sentence-transformers loads it, in float32."""
    import sentence_transformers
    import torch

    torch.set_num_threads(threads)
    model = sentence_transformers.SentenceTransformer(directory, device="cpu")
    return (
        lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False, normalize_embeddings=True),
        f"{sentence_transformers.__version__}, torch {torch.__version__}",
    )


def with_onnxruntime(directory: str, threads: int, file: str) -> tuple[Encode, str]:
    """Return the exported model in ONNX Runtime, with tokens by `tokenizers` and the mean of states by numpy."""
    import onnxruntime
    import tokenizers

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(directory, "tokenizer.json")))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> Any:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        rows: list[Any] = [None] * len(texts)
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            found = tokenizer.encode_batch([texts[i] for i in batch])
            inputs = {
                "input_ids": np.array([each.ids for each in found], np.int64),
                "attention_mask": np.array([each.attention_mask for each in found], np.int64),
                "token_type_ids": np.array([each.type_ids for each in found], np.int64),
            }
            states = session.run(None, {name: each for name, each in inputs.items() if name in names})[0]
            mask = inputs["attention_mask"][:, :, None].astype(np.float32)
            means = (states * mask).sum(axis=1) / mask.sum(axis=1)
            for i, row in zip(batch, means / np.linalg.norm(means, axis=1, keepdims=True), strict=True):
                rows[i] = row
        return np.stack(rows)

    return encode, onnxruntime.__version__


def write_reply(reply: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(reply), flush=True)


def main() -> None:
    directory, threads, *file = sys.argv[1:]
    made = with_onnxruntime(directory, int(threads), *file) if file else with_torch(directory, int(threads))
    encode, version = made
    encode(make_texts(0))
    write_reply({"version": version, "threads": threads, "precision": "INT8 (dynamic)" if file else "float32"})
    for line in sys.stdin:
        texts = make_texts(json.loads(line)["seed"])
        begin = time.perf_counter()
        encode(texts)
        write_reply({"texts_per_s": NUM_TEXTS / (time.perf_counter() - begin)})


if __name__ == "__main__":
    main()
