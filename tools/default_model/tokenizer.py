"""Train the byte-level BPE tokenizer: single digits, ChatML turns, marks of tool calls. Writes its three files."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.default_model.chat import END_OF_TEXT, PACKAGE_DIR, TURN_END, TURN_START, Chat
from tools.default_model.corpus import stream

VOCAB_SIZE = 2048
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)  # ids 0, 1, 2
MARKS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>")  # one token each, but part of the text
MAX_LENGTH = 2048


def train(texts: Iterator[str]) -> Tokenizer:
    """Return a tokenizer of exactly VOCAB_SIZE entries; digits are never merged, so that numbers are read by place."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL]
        + [AddedToken(t, special=False, normalized=False) for t in MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKS])
    return tokenizer


def english(seed: str, count: int) -> Iterator[str]:
    """Yield pieces of rendered conversations between the marks; ASCII only, so that noise gets no entries."""
    chat = Chat()
    marks = re.compile("|".join(map(re.escape, SPECIAL + MARKS)))
    for talk in islice(stream(seed), count):
        text = chat.render(talk.messages, talk.tools)
        if text.isascii() and len(text) < 2000:
            yield from filter(None, marks.split(text))


def write_config(directory: Path) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=60_000)
    parser.add_argument("--out", type=Path, default=PACKAGE_DIR)
    args = parser.parse_args()
    tokenizer = train(english("tokenizer", args.conversations))
    tokenizer.save(str(args.out / "tokenizer.json"))
    write_config(args.out)
    print(f"{tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
