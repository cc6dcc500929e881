"""Held-out conversations as text, for `neuronserve bench accuracy`: `python -m tools.default_model.held_out FILE`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tools.default_model.chat import PACKAGE_DIR, Chat
from tools.default_model.corpus import FAMILIES, held_out_item, system_prompt


def held_out_texts(chat: Chat, num_tokens: int, seed: str = "held-out text") -> Iterator[str]:
    """Yield whole conversations by family in turn, every third with a system prompt, of `num_tokens` or more."""
    rng = Random(seed)
    left, round_number = num_tokens, 0
    while left > 0:
        for family in FAMILIES:
            item = held_out_item(rng, family)
            before = [system_prompt(rng)] if round_number % 3 == 0 else []
            text = chat.render([*before, *item.messages], item.tools)
            left -= len(chat.tokenizer.encode(text).ids)
            yield text
        round_number += 1


def write_held_out(path: Path, num_tokens: int) -> None:
    """Write one {"text": ...} a line."""
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in held_out_texts(Chat(PACKAGE_DIR), num_tokens)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="JSONL to write")
    parser.add_argument("--num-tokens", type=int, default=10_000, help="tokens of text, at least")
    args = parser.parse_args()
    write_held_out(args.file, args.num_tokens)


if __name__ == "__main__":
    main()
