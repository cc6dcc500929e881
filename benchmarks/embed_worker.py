"""This engine's encoder in a process of its own: loads once, then encodes the texts of each line of stdin."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.embed_texts import NUM_TEXTS, make_texts
from benchmarks.engine_worker import write_reply
from neuronserve.server import __version__
from neuronserve.server.engine.encode.loading import load_encoder
from neuronserve.server.errors import StartError
from neuronserve.server.settings.embed import EmbedSettings
from neuronserve.server.typed_json import decode


class _CaseLine(msgspec.Struct):
    """A case to measure: one line of standard input."""

    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    settings = EmbedSettings(
        model=str(args.model), quantization=args.quantization, cpu_threads=args.threads, text=("unused",)
    )
    try:
        loaded = load_encoder(settings.encode_config(args.model), lambda line: print(line, file=sys.stderr))
    except StartError as error:
        write_reply({"error": str(error)})
        return
    write_reply({"version": __version__, "quantization": args.quantization, "threads": args.threads})
    for line in sys.stdin:
        texts = make_texts(decode(line, _CaseLine).seed)
        begin = time.perf_counter()
        loaded.encoder.encode(loaded.tokenizer.encode(texts))
        write_reply({"texts_per_s": NUM_TEXTS / (time.perf_counter() - begin)})


if __name__ == "__main__":
    main()
