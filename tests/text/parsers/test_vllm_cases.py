"""vLLM's own cases of tool parsers: the same calls come out, whole and streamed, but where it says why they do not."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from neuronserve.server.text.parsers.formats import output_reader
from neuronserve.server.text.parsers.output import OutputParser
from tests.text.parsers import vllm_cases, vllm_marked_cases
from tests.text.parsers.reading import Message, cut, every_split
from tests.text.parsers.vllm_cases import Calls, Case

CASES = [*vllm_cases.CASES, *vllm_marked_cases.CASES]
FUNCTIONS = vllm_cases.FUNCTIONS | vllm_marked_cases.FUNCTIONS


def read(case: Case, parts: list[str]) -> Message:
    names = {name for calls in (case.calls, case.ours or []) for name, _ in calls}
    functions = FUNCTIONS | {name: {} for name in names - FUNCTIONS.keys()}
    reasoning = "openai_gptoss" if case.parser == "openai" else "none"
    parser, message = OutputParser(output_reader(case.parser, reasoning, functions, None)), Message()
    for parsed in (*map(parser.feed, parts), parser.finish()):
        message.content += parsed.content
        message.reasoning += parsed.reasoning
        for part in parsed.calls:
            message.add(part.index, part.name, part.arguments)
    return message


def values(message: Message) -> Calls:
    """The calls with their arguments parsed, where those are JSON."""

    def parsed(text: str) -> object:
        try:
            return json.loads(text)
        except ValueError:
            return text

    return [(name, parsed(arguments)) for name, arguments in message.calls or []]


def as_they_read(case: Case, message: Message) -> bool:
    return values(message) == case.calls and case.content in (None, message.content)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parser}: {case.name}")
def test_vllms_cases(case: Case) -> None:
    message = read(case, [case.text])
    if not case.why:
        assert as_they_read(case, message), message
        return
    assert not as_they_read(case, message), "it does not differ any more"
    assert case.ours is None or values(message) == case.ours
    assert case.ours_content in (None, message.content)


def parts_of(text: str) -> Iterator[list[str]]:
    yield from every_split(text)
    for size in (2, 3, 5, 8):
        yield [text[at : at + size] for at in range(0, len(text), size)]
    for seed in range(10):
        yield cut(text, seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parser}: {case.name}")
def test_a_stream_adds_up_to_the_whole(case: Case) -> None:
    whole = read(case, [case.text])
    assert all(read(case, parts) == whole for parts in parts_of(case.text))


def test_the_table_of_the_docs_counts_the_cases(pytestconfig: pytest.Config) -> None:
    docs = (pytestconfig.rootpath / "docs" / "reference" / "http-api.md").read_text()
    total, same = Counter(case.parser for case in CASES), Counter(case.parser for case in CASES if not case.why)
    for parser, count in total.items():
        assert f"| `{parser}` | {same[parser]} of {count} |" in docs, (parser, same[parser], count)
