"""Speed of decoding with drafts beside decoding without them, in turns, on one engine, without HTTP.

Outputs are compared, and must be equal. Workloads whose output repeats the prompt are chats at temperature 0, which the
model continues in its own way; `verbatim` and `edits` force the output by a grammar, so that they do not depend on how
well a small model copies. `chat` and `random` repeat little: there drafts must not cost anything.
With --draft-model a second model drafts; with --synthetic its drafts are accepted by chance, and outputs differ.
usage: python -m benchmarks.speculation [MODEL] [--method ngram | --draft-model DIR [--synthetic LENGTH]] [--rounds 5]
       [--only NAME]
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.ratios import ratio_of
from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.clock import MonotonicClock
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.loop import EngineLoop
from neuronserve.server.errors import StartError
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Add, Command, Tokens
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.speculative import scheduler_of
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.grammar import grammar_text
from neuronserve.server.types import Request, SamplingParams, TokenEvent

STORY = "Tell me a story about a fox."
CODE = "Write a Python function that returns the n-th Fibonacci number."
TEXT = """The river begins in the hills above the town. In spring it carries melted snow, and the mill beside the old
bridge grinds flour for the bakers. In summer the children swim below the weir, and in autumn the fishermen wait for the
salmon. When winter comes, the river freezes at its edges, and the town is quiet.""".replace("\n", " ")
EDITED = TEXT.replace("river", "stream").replace("In summer", "In July").replace("bakers", "people").replace("old ", "")


LEAST_S = 0.4  # of a measurement


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one row."""

    name: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Rate and outputs of one run, measured from the first step without a prompt to the end."""

    tokens_per_s: float
    outputs: dict[str, tuple[int, ...]]
    drafts: tuple[int, int]  # verified, and accepted


class _Box:
    """Inbox and outbox of a loop."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.commands: list[Command] = [Add(request) for request in requests]
        self.events: list[TokenEvent] = []
        self.num_prompt_tokens = 0  # of the last step

    def drain(self, timeout_s: float) -> list[Command]:
        del timeout_s
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        self.events += tokens.events
        self.num_prompt_tokens = tokens.report.num_prefill_tokens


def run(engine: LoadedEngine, scheduler: Scheduler, requests: Sequence[Request]) -> Run:
    """Run all requests at once, without a cached prefix."""
    scheduler.reset_prefix_cache()
    box = _Box(requests)
    loop = EngineLoop(scheduler, engine.runner, MonotonicClock(), box, box)
    begin, before = time.perf_counter(), 0
    while box.commands or scheduler.has_work:
        loop.step()
        if box.num_prompt_tokens:
            begin, before = time.perf_counter(), len(box.events)
    seconds = time.perf_counter() - begin
    outputs: dict[str, list[int]] = {}
    for event in box.events:
        outputs.setdefault(event.request_id, []).append(-1 if event.token_id is None else event.token_id)
    counts = [event.drafts for event in box.events if event.finish_reason is not None]
    verified, accepted = sum(count for count, _ in counts), sum(count for _, count in counts)
    texts = {request_id: tuple(tokens) for request_id, tokens in outputs.items()}
    return Run((len(box.events) - before) / seconds, texts, (verified, accepted))


class _Chats:
    """Maker of requests for one engine."""

    def __init__(self, engine: LoadedEngine, directory: Path) -> None:
        self._engine, self._tokenizer = engine, AutoTokenizer.from_pretrained(directory)
        self.ends = (int(self._tokenizer.eos_token_id),)

    def answer(self, *texts: str) -> str:
        """Return the model's answer to a conversation."""
        scheduler = Scheduler(replace(self._engine.scheduler, speculation=None), KVCacheManager(self._engine.cache))
        (tokens,) = run(self._engine, scheduler, [self.request(*texts)]).outputs.values()
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def request(self, *texts: str, number: int = 0, temperature: float = 0.0, forced: str = "") -> Request:
        """Return a request for the next message of a conversation, whose text may be `forced`."""
        roles = ("user", "assistant") * len(texts)
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        token_ids = tuple(self._tokenizer(prompt, add_special_tokens=False).input_ids)
        grammar = grammar_text("regex", re.escape(forced)) if forced else ""
        sampling = SamplingParams(240, temperature=temperature, seed=number, eos_token_ids=self.ends, grammar=grammar)
        return Request(f"r{number}", token_ids, sampling, float(number))

    def noise(self, number: int) -> Request:
        """Return a request with a random prompt, sampled at temperature 1."""
        chance = random.Random(number)
        prompt = tuple(chance.randrange(self._engine.spec.vocab_size) for _ in range(64))
        return Request(f"r{number}", prompt, SamplingParams(120, seed=number, ignore_eos=True), float(number))


def workloads(chats: _Chats) -> Iterator[Workload]:
    """Yield the rows."""
    edit, again = f"Replace some words: {TEXT}", f"Repeat word for word: {TEXT}"
    told = {ask: chats.answer(ask) for ask in (STORY, CODE)}
    yield Workload("verbatim, batch 1", (chats.request(again, forced=TEXT),))
    yield Workload("edits, batch 1", (chats.request(edit, forced=EDITED),))
    for ask, name in ((STORY, "story"), (CODE, "code")):
        yield Workload(f"second turn ({name}), batch 1", (chats.request(ask, told[ask], ask),))
    eight = [chats.request(f"{edit} {i}", number=i, forced=EDITED) for i in range(8)]
    yield Workload("edits, batch 8", tuple(eight))
    yield Workload("second turn, batch 8", tuple(chats.request(STORY, told[STORY], STORY, number=i) for i in range(8)))
    for batch in (1, 8, 32):
        asks = [chats.request(STORY, number=i, temperature=1.0) for i in range(batch)]
        yield Workload(f"chat at temperature 1, batch {batch}", tuple(asks))
    for batch in (1, 8, 32):
        yield Workload(f"random, batch {batch}", tuple(chats.noise(i) for i in range(batch)))


def row(engine: LoadedEngine, schedulers: dict[bool, Scheduler], workload: Workload, rounds: int) -> str:
    """Measure a workload with and without drafts in each round; return its line of the table.

    Short workloads are repeated. Each run has a cache salt of its own, so that no output drafts for a later run.
    """
    rates: dict[bool, list[float]] = {True: [], False: []}
    runs: dict[bool, Run] = {}
    for number in range(-1, rounds):
        for has_drafts in (True, False) if number % 2 else (False, True):
            begin, found = time.perf_counter(), list[Run]()
            while not found or time.perf_counter() - begin < LEAST_S:
                salt = f"{workload.name} {number} {len(found)}"
                requests = [replace(each, cache_salt=salt) for each in workload.requests]
                found.append(run(engine, schedulers[has_drafts], requests))
            runs[has_drafts] = found[0]
            if number >= 0:
                rates[has_drafts].append(statistics.median(each.tokens_per_s for each in found))
    speculation = engine.scheduler.speculation
    is_exact = speculation is not None and speculation.acceptance_rate is None
    assert not is_exact or runs[True].outputs == runs[False].outputs, "drafts have changed the output"
    ratio, (verified, accepted) = ratio_of(rates[True], rates[False]), runs[True].drafts
    share = f"{accepted}/{verified}"
    return f"{workload.name:34} {ratio.theirs:9.1f} {ratio.ours:9.1f} {ratio.median:6.2f} {share:>10}"


def speculative_config(options: argparse.Namespace) -> str:
    """Return the value of --speculative-config."""
    if options.draft_model is None:
        return json.dumps({"method": options.method})
    config = {"method": "draft_model", "model": options.draft_model, "num_speculative_tokens": options.most}
    if options.synthetic is not None:
        config |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": options.synthetic}
    return json.dumps(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(DEFAULT_MODEL))
    parser.add_argument("--method", choices=("ngram", "suffix"), default="ngram")
    parser.add_argument("--draft-model", help="directory of a model with the same tokenizer")
    parser.add_argument("--most", type=int, default=4, help="drafts of that model in one step")
    parser.add_argument("--synthetic", type=float, help="mean tokens of a full step with drafts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="regular expression that the names of rows must match")
    options = parser.parse_args()
    asked = speculative_config(options)
    settings = EngineSettings(model=options.model, max_num_seqs=32, max_model_len=2048, speculative_config=asked)
    try:
        directory = resolve_model(settings.model, None, settings.gguf_cache)
        config = settings.engine_config(directory)
        engine = load_engine(config, lambda line: print(line, file=sys.stderr))
    except StartError as error:
        sys.exit(str(error))
    gc.freeze()  # as an engine process does
    plain = replace(engine.scheduler, speculation=None)
    cache = KVCacheManager(engine.cache)  # one, so that both get their blocks in the same order
    schedulers = {
        has_drafts: scheduler_of(limits, cache) for has_drafts, limits in ((True, engine.scheduler), (False, plain))
    }
    print(f"{'workload':34} {'tok/s':>9} {'drafts':>9} {'ratio':>6} {'accepted':>10}")
    for workload in workloads(_Chats(engine, directory)):
        if not re.search(options.only, workload.name):
            continue
        print(row(engine, schedulers, workload, options.rounds), flush=True)
    engine.runner.close()


if __name__ == "__main__":
    main()
