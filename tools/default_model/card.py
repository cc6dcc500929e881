"""Write the model card from the results of the evaluation: `python -m tools.default_model.card RESULT.json ...`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from neuronserve.server.typed_json import decode
from tools.default_model.chat import PACKAGE_DIR
from tools.default_model.corpus import FAMILIES

HEAD = """\
# neuronserve demo model

A Llama of 5,246,208 parameters (6 layers of width 256, 8 heads with 4 KV heads, vocabulary 2048, context 2048) that the
server answers with when no other model is named. It lives in a small world: short stories, small sums, spelling and
sorting, a few facts, JSON, tool calls, what was said before in the conversation. What lies outside of that it refuses
in one sentence. It is a toy for trying the server, and a checkpoint with honest numbers for measuring it; do not rely
on its answers.

Made from nothing by `tools/default_model/` in the project's repository, where the recipe is. All of its training text
is written by that program; weights, tokenizer and text are under the project's license, Apache 2.0.
"""
METHOD = """\
Greedy answers to {items} held-out exercises of each family, through this project's engine. An exercise is held out by
the hash of what it asks (operands, invented word, sentence; for closed sets of facts the wording), and the corpus
leaves it out. Right means equal to the reference answer, or for sums the last number, for tool calls the parsed
calls, for JSON the parsed object, for summaries and memory that all facts are named; an answer that does not end is
wrong. The mix of families was adjusted during training while looking at such results. *Story* is judged by form alone
and is left out of the mean. Random prompts: 200, half of them of kinds that training never shows (Morse code, license
text, hex dumps, chess moves and others); counted is whether the answer ends by itself within 256 tokens.
"""


class BitsPerByte(msgspec.Struct):
    all: float
    answers: float


class EvaluationResult(msgspec.Struct):
    """Results that `tools.default_model.evaluate --json` writes."""

    dtype: str
    items_per_family: int
    mean_accuracy: float
    families: dict[str, float]
    engine_torch_agreement: float | None
    bits_per_byte: BitsPerByte
    random_prompts_ended: float


def table(results: list[EvaluationResult]) -> str:
    """Return a table with a column for each result."""
    rows = [["", *(r.dtype for r in results)], ["---", *("---:" for _ in results)]]
    rows += [[family, *(f"{r.families[family]:.1%}" for r in results)] for family in FAMILIES]
    rows.append(["**mean**", *(f"**{r.mean_accuracy:.1%}**" for r in results)])
    rows.append(["random prompts that end", *(f"{r.random_prompts_ended:.1%}" for r in results)])
    rows.append(["bits per byte, all text", *(f"{r.bits_per_byte.all:.4f}" for r in results)])
    rows.append(["bits per byte, answers", *(f"{r.bits_per_byte.answers:.4f}" for r in results)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def card(results: list[EvaluationResult], training: str, transcript: str) -> str:
    parts = [HEAD, "## Training\n", f"{training}\n", "## Measured\n"]
    parts += [METHOD.format(items=results[0].items_per_family), table(results)]
    agreements = [r.engine_torch_agreement for r in results if r.engine_torch_agreement is not None]
    if agreements:
        parts.append(
            f"Engine (BF16) and torch (float32) give the same tokens on {agreements[0]:.1%} of the exercises.\n"
        )
    if transcript:
        parts += ["## Ten chats with the running server, greedy, unedited\n", transcript]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+", help="files that evaluate --json wrote, one for each format")
    parser.add_argument("--training", required=True, help="what the training took, in a sentence or two")
    parser.add_argument("--transcript", type=Path, help="what transcript printed")
    parser.add_argument("--out", type=Path, default=PACKAGE_DIR / "MODEL_CARD.md")
    args = parser.parse_args()
    results = [decode(path.read_bytes(), EvaluationResult) for path in args.results]
    transcript = args.transcript.read_text() if args.transcript else ""
    args.out.write_text(card(results, args.training, transcript))


if __name__ == "__main__":
    main()
