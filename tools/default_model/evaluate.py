"""Held-out accuracy per family, bits per byte, and whether answers to random prompts end, by torch or by the engine."""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, get_args

from neuronserve.server.config.formats import Dtype, Quantization, WeightFormat
from tools.default_model.backend import Backend, GeneratedIds
from tools.default_model.chat import PACKAGE_DIR, Chat
from tools.default_model.corpus import FAMILIES, held_out_item, system_prompt
from tools.default_model.item import Item
from tools.default_model.strangers import prompts as stranger_prompts

CONTEXT = 2048
MAX_TOKENS = 256  # in one answer
NUM_STRANGERS = 200
TEXT_PER_FAMILY = 12  # held-out conversations of each family whose bits per byte are measured


@dataclass(frozen=True, slots=True)
class Question:
    family: str
    item: Item
    prompt_ids: list[int]

    @property
    def has_room(self) -> bool:
        """Whether an answer of full length fits in the context after the prompt; longer prompts are skipped."""
        return len(self.prompt_ids) <= CONTEXT - MAX_TOKENS


def questions(chat: Chat, per_family: int, seed: str = "held out") -> list[Question]:
    """Return the same held-out exercises for every backend; every third has a system prompt."""
    rng = Random(seed)
    out = []
    for family in FAMILIES:
        for i in range(per_family):
            item = held_out_item(rng, family)
            before = [system_prompt(rng)] if i % 3 == 0 else []
            out.append(Question(family, item, chat.encode_prompt([*before, *item.prompt], item.tools)))
    return out


def accuracy(chat: Chat, asked: Sequence[Question], answers: Sequence[GeneratedIds]) -> dict[str, float]:
    """Return the share of right answers by family; an answer that does not end is wrong."""
    right = dict.fromkeys(FAMILIES, 0)
    for question, answer in zip(asked, answers, strict=True):
        right[question.family] += answer.is_ended and question.item.check(text_of(chat, answer))
    total = {family: sum(q.family == family for q in asked) for family in FAMILIES}
    return {family: right[family] / total[family] for family in FAMILIES}


def text_of(chat: Chat, answer: GeneratedIds) -> str:
    return str(chat.tokenizer.decode(list(answer.ids))).strip()


def mean_accuracy(families: dict[str, float]) -> float:
    """Return the mean over the families whose answers can be verified."""
    verified = [share for family, share in families.items() if not FAMILIES[family].is_open]
    return sum(verified) / len(verified)


def bits_per_byte(chat: Chat, backend: Backend, seed: str = "held-out text") -> dict[str, float]:
    """Return bits per byte of held-out conversations: of all text, and of the assistant's alone."""
    rng = Random(seed)
    nats = dict.fromkeys(("all", "answers"), 0.0)
    size = dict.fromkeys(("all", "answers"), 0)
    for family in FAMILIES:
        for _ in range(TEXT_PER_FAMILY):
            item = held_out_item(rng, family)
            document = chat.encode([(item.messages, item.tools)])[0]
            costs = backend.nats(document.ids)
            nats["all"] += sum(costs)
            nats["answers"] += sum(c for c, is_answer in zip(costs, document.is_answer[1:], strict=True) if is_answer)
            size["all"] += len(chat.render(item.messages, item.tools).encode())
            size["answers"] += len(chat.tokenizer.decode(_only(document.ids, document.is_answer)).encode())
    return {kind: nats[kind] / size[kind] / math.log(2) for kind in nats}


def _only(ids: list[int], marks: list[bool]) -> list[int]:
    return [token for token, is_marked in zip(ids, marks, strict=True) if is_marked]


def strangers(chat: Chat, backend: Backend) -> list[tuple[str, GeneratedIds]]:
    """Return random prompts that leave room for an answer, with the answers."""
    encoded = ((text, chat.encode_prompt([{"role": "user", "content": text}])) for text in stranger_prompts())
    met = list(islice(((text, ids) for text, ids in encoded if len(ids) <= CONTEXT - MAX_TOKENS), NUM_STRANGERS))
    answers = backend.generate([ids for _, ids in met], MAX_TOKENS)
    return [(text, answer) for (text, _), answer in zip(met, answers, strict=True)]


def backend_of(name: str, directory: Path, dtype: WeightFormat) -> Backend:
    """Make a backend. It is imported only now: the server does not depend on torch, nor the engine on it."""
    if name == "torch":
        from tools.default_model.torch_backend import TorchBackend

        return TorchBackend(directory)
    from tools.default_model.engine_backend import EngineBackend

    cache = Path(tempfile.gettempdir()) / "neuronserve-evaluate"
    return EngineBackend(directory, dtype, cache)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    chat = Chat(args.model)
    backend = backend_of(args.backend, args.model, args.dtype)
    held_out = questions(chat, args.limit)
    asked = [question for question in held_out if question.has_room]
    answers = backend.generate([q.prompt_ids for q in asked], MAX_TOKENS)
    families = accuracy(chat, asked, answers)
    if args.show_wrong:
        _show_wrong(chat, asked, answers)
    agreement = None
    if args.backend == "engine" and args.agreement:
        reference = backend_of("torch", args.model, args.dtype).generate([q.prompt_ids for q in asked], MAX_TOKENS)
        agreement = sum(a == b for a, b in zip(answers, reference, strict=True)) / len(asked)
    met = strangers(chat, backend)
    return {
        "backend": args.backend,
        "dtype": args.dtype,
        "items_per_family": args.limit,
        "items_too_long": len(held_out) - len(asked),
        "mean_accuracy": mean_accuracy(families),
        "families": families,
        "engine_torch_agreement": agreement,
        "bits_per_byte": bits_per_byte(chat, backend),
        "random_prompts_ended": sum(answer.is_ended for _, answer in met) / len(met),
    }


def _show_wrong(chat: Chat, asked: Sequence[Question], answers: Sequence[GeneratedIds]) -> None:
    for question, answer in zip(asked, answers, strict=True):
        text = text_of(chat, answer)
        if not (answer.is_ended and question.item.check(text)):
            last = question.item.prompt[-1]["content"]
            print(f"{question.family}: {last[:300]!r}\n    wanted {question.item.answer!r}\n    got    {text!r}")


def report(result: dict[str, Any]) -> str:
    lines = [f"{family:12} {share:7.1%}" for family, share in result["families"].items()]
    lines.append(f"{'mean':12} {result['mean_accuracy']:7.1%}  (open families left out)")
    if result["items_too_long"]:
        room = f"{CONTEXT} tokens less {MAX_TOKENS} for the answer"
        lines.append(f"{result['items_too_long']} items were not asked: their prompts are longer than {room}")
    if result["engine_torch_agreement"] is not None:
        lines.append(f"engine and torch give the same tokens on {result['engine_torch_agreement']:.1%} of the items")
    bits = result["bits_per_byte"]
    lines.append(f"bits per byte: {bits['all']:.3f} of all text, {bits['answers']:.3f} of the answers")
    lines.append(f"random prompts whose answer ends by itself: {result['random_prompts_ended']:.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("engine", "torch"), default="engine")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype) + get_args(Quantization), default="bfloat16", help="of the engine's weights"
    )
    parser.add_argument("--limit", type=int, default=64, help="held-out items of each family")
    parser.add_argument("--model", type=Path, default=PACKAGE_DIR, help="checkpoint directory")
    parser.add_argument("--agreement", action=argparse.BooleanOptionalAction, default=True, help="compare with torch")
    parser.add_argument("--show-wrong", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    result = evaluate(args)
    print(report(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
