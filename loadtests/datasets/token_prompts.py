"""Prompts of random tokens with the lengths and shared prefixes of a workload."""

from __future__ import annotations

from neuronserve.loadtests.prompts import IdPrompt, Ids, Session, single
from neuronserve.loadtests.vocabulary import Vocabulary
from neuronserve.server.workload.synthetic import random_stream
from neuronserve.server.workload.workload import Workload


def workload_sessions(
    workload: Workload, vocabulary: Vocabulary, seed: int, has_arrivals: bool = False
) -> list[Session]:
    """A session of one turn for each request; with `has_arrivals` it keeps the workload's own time."""
    prefixes = PrefixTokens(vocabulary, seed, workload.prefix_block)
    random = random_stream(seed, "tokens")
    names = workload.prefixes or ((),) * len(workload)
    requests = zip(workload.input_len.tolist(), workload.output_len.tolist(), workload.arrival_s.tolist(), strict=True)
    sessions = []
    for (input_len, output_len, arrival_s), prefix in zip(requests, names, strict=True):
        shared = prefixes.parts(prefix, input_len)
        own = vocabulary.draw(random, input_len - sum(map(len, shared)))
        prompt = IdPrompt(tuple(part for part in (*shared, own) if part))
        sessions.append(single(prompt, output_len, arrival_s if has_arrivals else None))
    return sessions


class PrefixTokens:
    """Tokens of each named block, drawn once and shared by all prompts that begin with it."""

    def __init__(self, vocabulary: Vocabulary, seed: int, block_len: int) -> None:
        self._vocabulary, self._seed, self._block_len = vocabulary, seed, block_len
        self._known: dict[int, Ids] = {}

    def parts(self, names: tuple[int, ...], most: int) -> list[Ids]:
        """The blocks one after another, the last of `most` tokens cut."""
        blocks = [self._block(name) for name in names]
        return [block[: max(0, most - i * self._block_len)] for i, block in enumerate(blocks)]

    def _block(self, name: int) -> Ids:
        if name not in self._known:
            random = random_stream(self._seed, "prefix_tokens", name)
            self._known[name] = self._vocabulary.draw(random, self._block_len)
        return self._known[name]
