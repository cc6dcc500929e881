"""Trials and blames after an engine's death: engines that die of one request, and of none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.link.journal import TRIAL_SIZE, TRIAL_TOKENS, Journal, OpenSequence
from neuronserve.server.link.messages import Tokens
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.types import Charge, StepReport, TokenEvent
from tests.link.test_client import request


def journal_of(count: int) -> Journal:
    journal = Journal()
    for i in range(count):
        journal.add(OpenSequence(request(f"r{i}"), TokenStream([f"r{i}"], lambda _: None)))
    return journal


def names(sequences: list[OpenSequence]) -> list[str]:
    return [each.request.request_id for each in sequences]


def compute(journal: Journal, sent: list[str]) -> None:
    """A token of each, as a step of an engine gives."""
    for name in sent:
        sequence = next(each for each in journal if each.request.request_id == name)
        journal.take(TokenEvent(name, 1, len(sequence.token_ids), 0.0), Charge())


@given(count=st.integers(1, 40), chosen=st.integers(0, 39), num_steps=st.integers(0, 3))
def test_one_poison_request_is_refused_after_three_deaths_and_nobody_else(
    count: int, chosen: int, num_steps: int
) -> None:
    """Wherever it stands, and whether it kills at once or after some of its steps."""
    journal, poison = journal_of(count), f"r{chosen % count}"
    num_deaths, refused, at_engine, num_survived = 0, [], names(journal.ready()), 0
    while num_deaths < 4 and not refused:
        if poison in at_engine and num_survived >= min(num_steps, TRIAL_TOKENS - 1):
            num_deaths += 1
            refused = names(journal.crashed(is_fault=True))
            at_engine, num_survived = names(journal.ready()), 0
            assert len(at_engine) <= TRIAL_SIZE
        else:
            num_survived += poison in at_engine
            compute(journal, at_engine)
            at_engine += names(journal.ready())
    assert (refused, num_deaths) == ([poison], 3)
    for _ in range(TRIAL_TOKENS * (count + 2)):
        compute(journal, at_engine)
        at_engine += names(journal.ready())
    assert len(at_engine) == len(journal) == count - 1
    assert not journal.is_trying


def test_faults_in_a_row_starve_nobody() -> None:
    """Each engine gives tokens to the blamed sequence and to one group more, and fails in the middle of the next."""
    journal, given = journal_of(5 * TRIAL_SIZE), set[str]()
    journal.ready()
    for _ in range(3):
        assert journal.crashed(is_fault=True) == []
        tried = names(journal.ready())
        is_last = False
        while not is_last:
            is_last = len(tried) > 1  # not alone
            for _ in range(TRIAL_TOKENS):
                compute(journal, tried)
            given.update(tried)
            tried = names(journal.ready())
    assert len(given) == len(journal) == 5 * TRIAL_SIZE


def test_deaths_that_nothing_computed_has_caused_blame_nobody() -> None:
    journal = journal_of(30)
    assert len(journal.ready()) == 30
    for _ in range(5):
        assert journal.crashed(is_fault=False) == []
        assert not journal.is_trying
        assert len(journal.ready()) == 30


def test_who_was_blamed_is_tried_alone_and_is_innocent_when_nothing_happens() -> None:
    journal = journal_of(2 * TRIAL_SIZE + 1)
    journal.ready()
    assert journal.crashed(is_fault=True) == []
    first = names(journal.ready())
    assert len(first) == TRIAL_SIZE
    assert journal.ready() == []  # until they have computed
    assert journal.crashed(is_fault=True) == []
    at_engine: list[str] = []
    for name in first:
        at_engine += (alone := names(journal.ready()))
        assert alone == [name]
        for _ in range(TRIAL_TOKENS):
            compute(journal, alone)
    assert len(journal.ready()) == TRIAL_SIZE
    assert not any(each.num_blames for each in journal)


def test_the_next_suspect_comes_when_one_has_been_computed_again() -> None:
    """So that an engine never waits for suspects, and has few at a time that may bring it down by a prompt."""
    journal = journal_of(3 * TRIAL_SIZE)
    journal.ready()
    assert journal.crashed(is_fault=True) == []
    behind = names(journal.ready())
    for _ in range(2 * TRIAL_SIZE):
        compute(journal, behind[:1])
        behind = behind[1:] + names(journal.ready())
        assert len(behind) == TRIAL_SIZE
    compute(journal, behind)
    assert journal.ready() == []
    assert journal.is_trying  # nobody has decoded yet


def test_a_poison_that_waits_for_its_decode_is_found_among_all_that_do() -> None:
    journal, poison = journal_of(3 * TRIAL_SIZE), "r20"
    journal.ready()
    journal.crashed(is_fault=True)
    at_engine = names(journal.ready())
    while poison not in at_engine:
        compute(journal, at_engine[-1:])
        at_engine += names(journal.ready())
    compute(journal, [poison])
    assert journal.crashed(is_fault=True) == []
    while (alone := names(journal.ready())) != [poison]:
        assert len(alone) == 1
        compute(journal, 2 * alone)
    assert names(journal.crashed(is_fault=True)) == [poison]


def test_what_a_fault_leaves_is_trusted_unless_it_was_computed_upon_what_another_has_left() -> None:
    journal, trusted = journal_of(3), []
    journal.ready()
    for is_fault in (False, True, True, False):
        journal.crashed(is_fault)
        trusted.append(journal.trusts_cache)
        journal.ready()
    assert trusted == [True, True, False, True]


def test_tokens_that_an_engine_has_in_its_cache_are_not_computed_again() -> None:
    """Each sequence has a prompt of three tokens, and had given out four."""
    for num_cached, again in ((0, (3, 4)), (2, (1, 4)), (3, (0, 4)), (5, (0, 2))):
        journal = journal_of(1)
        for _ in range(4):
            compute(journal, ["r0"])
        journal.crashed(is_fault=False)
        journal.ready()
        for index in (4, 5):
            journal.take(TokenEvent("r0", 1, index, 0.0, num_cached_tokens=num_cached), Charge())
        assert tuple(journal.recomputed_tokens.values()) == again


class PricedEngine:
    """Turns of an engine whose decode steps cost the same, however many sequences share them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._used: dict[str, int] = {}

    def turn(self, names: list[str], step_ns: int) -> int:
        """Make a step of these sequences, with equal shares, and return its cost."""
        for name in names:
            self._used[name] = self._used.get(name, 0) + step_ns // len(names)
        known = {each.request.request_id: len(each.token_ids) for each in self._journal}
        events = [TokenEvent(name, 1, known[name], 0.0) for name in names]
        report = StepReport(1, 0.0, 0.0, len(names), 0, 0, len(names), tuple(names), (), 1, 2, 0, 0, 0.0)
        self._journal.take_turn(Tokens(events, report, [Charge(self._used[name]) for name in names]))
        return step_ns // len(names) * len(names)


@given(
    steps=st.lists(st.sets(st.sampled_from(["r0", "r1", "r2", "r3"]), min_size=1), max_size=8),
    num_deaths=st.integers(1, 3),
)
def test_requests_and_the_operator_pay_for_all_steps_together(steps: list[set[str]], num_deaths: int) -> None:
    journal, total_ns = journal_of(4), 0
    for _ in range(num_deaths):
        engine = PricedEngine(journal)
        total_ns += sum(engine.turn(sorted(names), 1200) for names in steps)
        journal.crashed(is_fault=False)
    engine = PricedEngine(journal)
    total_ns += engine.turn(["r0", "r1", "r2", "r3"], 1200) + engine.turn(["r0", "r1", "r2", "r3"], 1200)
    assert sum(each.charge.device_ns for each in journal) + journal.recomputed_ns == total_ns


def test_who_has_caught_up_does_not_pay_for_those_who_have_not() -> None:
    journal, everybody = journal_of(4), ["r0", "r1", "r2", "r3"]
    first = PricedEngine(journal)
    for _ in range(3):
        first.turn(everybody, 1200)
    journal.crashed(is_fault=True)
    before = {each.request.request_id: each.charge.device_ns for each in journal}
    second = PricedEngine(journal)
    second.turn(["r0"], 5000)  # computes its prompt and its tokens again
    for _ in range(5):
        second.turn(["r0"], 1200)
    after = {each.request.request_id: each.charge.device_ns for each in journal}
    assert after["r0"] - before["r0"] == 5 * 1200 // 4
    assert journal.recomputed_ns == 5000 + 5 * 1200 * 3 // 4
    for name in everybody[1:]:
        second.turn([name], 5000)
    second.turn(everybody, 1200)
    assert {each.charge.device_ns - before[each.request.request_id] for each in journal} == {300, 1800}


def test_a_sequence_that_is_handed_over_pays_for_both_engines_and_counts_as_no_death() -> None:
    first, second = Journal(), Journal()
    first.add(OpenSequence(request("a", 9), TokenStream(["a"], lambda _: None), hands_over=True))
    (sent,) = first.ready()
    assert sent.resumed.sampling.max_tokens == 1
    _, event, charge = first.take(TokenEvent("a", 5, 0, 0.0, "length"), Charge(100))
    assert (event.finish_reason, charge.device_ns, len(first)) == (None, 100, 0)
    (handed,) = first.take_handed()
    assert not first.take_handed()
    assert handed.resumed == replace(handed.request, generated_token_ids=(5,), is_handed_over=True)
    second.add(handed)
    second.ready()
    _, event, charge = second.take(TokenEvent("a", 6, 1, 0.0, num_cached_tokens=2), Charge(30))
    assert (event.num_cached_tokens, charge.device_ns) == (0, 130)
    assert (second.handed_tokens, second.sequences["resumed"]) == ({"copied": 2, "computed": 1}, 0)
    assert second.recomputed_ns == sum(second.recomputed_tokens.values()) == 0
    second.crashed(is_fault=False)
    (again,) = second.ready()
    assert again.resumed == replace(handed.request, generated_token_ids=(5, 6))
    assert second.sequences["resumed"] == 1


def test_a_first_token_that_ends_its_sequence_is_not_handed_over() -> None:
    journal = Journal()
    journal.add(OpenSequence(request("a", 9), TokenStream(["a"], lambda _: None), hands_over=True))
    journal.ready()
    _, event, _ = journal.take(TokenEvent("a", 5, 0, 0.0, "stop"), Charge(100))
    assert event.finish_reason == "stop"
    assert not journal.take_handed()
