"""The open sequences of one engine, with all that another engine needs to go on with them. Pure.

A token depends on nothing but its request: its prompt, its sampling parameters and the tokens before it. So a sequence
goes on after its engine's death as one does after a preemption: prompt and tokens given out are computed again, and
the next token is the one that would have come.

Which request brought an engine down is found by trials. After a death by a fault every sequence that was there is a
suspect until the next engine has computed again what was there and decoded a token more. It gets a few of them at a
time, the next when one has been computed again, so that its steps are as full as after any other death. Who is on trial
at the next fault is blamed for it and tried alone, before the others; who is blamed twice is refused. Of the others
those come first who got no token of the engine before, so that faults in a row starve nobody. A death from outside
(SIGKILL) makes no suspects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from neuronserve.server.link.messages import Tokens
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.types import Charge, Request, TokenEvent

TRIAL_TOKENS = 2  # by then a step has recomputed what was there, and another one has decoded
TRIAL_SIZE = 16  # suspects to be computed again at a time: some steps of long ones, two of short ones
MAX_BLAMES = 2
NOTHING = Charge()


@dataclass(slots=True)
class OpenSequence:
    """One open sequence: its request, its reader, and what was given out of it."""

    request: Request
    stream: TokenStream
    token_ids: list[int] = field(default_factory=list)  # generated and delivered
    num_cached_tokens: int = 0  # as its first engine reported
    charge: Charge = NOTHING  # as delivered last
    base: Charge = NOTHING  # of it, what engines before this one had charged
    caught_up: Charge | None = None  # what this engine had charged when it had computed all of that again
    here_ns: int = 0  # what this engine has charged
    spared_ns: int = 0  # of it, shares of sequences that a death keeps from the steps
    is_suspect: bool = False
    num_blames: int = 0
    num_waits: int = 0  # deaths since its last token
    num_tokens_here: int = 0  # of token_ids, by the engine that has it
    is_sent: bool = False  # to the engine that has it
    is_placed: bool = False  # in its batch

    @property
    def resumed(self) -> Request:
        """The request as the next engine gets it."""
        return replace(self.request, generated_token_ids=tuple(self.token_ids))

    @property
    def is_catching_up(self) -> bool:
        """True while its engine computes what another one had computed, and charged."""
        return bool(self.base.device_ns) and self.caught_up is None

    def take(self, event: TokenEvent, charge: Charge) -> tuple[TokenEvent, Charge]:
        """Record an event; returns it and its charge as its reader gets them."""
        if event.token_id is not None:
            self.token_ids.append(event.token_id)
            self.num_tokens_here += 1
            self.is_placed = True
        if event.index == 0:
            self.num_cached_tokens = event.num_cached_tokens
        elif event.num_cached_tokens != self.num_cached_tokens:
            event = event._replace(num_cached_tokens=self.num_cached_tokens)
        self.charge = self._whole(charge)
        return event, self.charge

    def move(self) -> None:
        """Its engine has died: from here on another one charges."""
        self.base, self.caught_up, self.is_sent, self.is_placed = self.charge, None, False, False
        self.here_ns = self.spared_ns = 0
        self.num_waits = 0 if self.num_tokens_here else self.num_waits + 1
        self.num_tokens_here = 0

    def _whole(self, charge: Charge) -> Charge:
        """What all engines have charged, without what only a death made necessary.

        The step that catches up makes a token as well; that one is free.
        """
        self.here_ns = charge.device_ns
        if not self.base.device_ns:
            return charge._replace(device_ns=charge.device_ns - self.spared_ns)
        self.caught_up = self.caught_up or charge
        more_ns = charge.device_ns - self.caught_up.device_ns - self.spared_ns
        return Charge(self.base.device_ns + more_ns, self.base.is_extrapolated or charge.is_extrapolated)


class Journal:
    """Open sequences by id, in the order of their submission."""

    def __init__(self) -> None:
        self._open: dict[str, OpenSequence] = {}
        self._trial: list[OpenSequence] = []  # suspects that the engine has
        self.is_trying = False  # while suspects are left nobody else is sent to the engine
        self.trusts_cache = True  # that the latest engine has left: it may be what brings the next one down
        self.has_moved = False  # some sequence has had another engine before
        self.sequences = {"resumed": 0, "refused": 0}  # that an engine's death has met: how often they went on, or not
        self.recomputed_tokens = {"prompt": 0, "generated": 0}  # by when they go on
        self.recomputed_ns = 0  # modelled device time that deaths have cost, which no request is charged
        self._delayed: set[str] = set()  # sequences that had a place, and no token yet of the engine that has them now

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenSequence]:
        return iter(list(self._open.values()))

    def add(self, sequence: OpenSequence) -> None:
        """Note a new sequence, or one that another engine had."""
        self._open[sequence.request.request_id] = sequence
        if sequence.token_ids:
            self.has_moved = True
            self._delayed.add(sequence.request.request_id)

    def pop(self, request_id: str) -> OpenSequence | None:
        """Forget a sequence; None when it is not open here."""
        sequence = self._open.pop(request_id, None)
        self._delayed.discard(request_id)
        self._trial = [each for each in self._trial if each is not sequence]
        return sequence

    def clear(self) -> list[OpenSequence]:
        """Forget all, and return them."""
        gone, self._open, self._trial, self.is_trying = list(self._open.values()), {}, [], False
        self._delayed.clear()
        return gone

    def take_turn(self, turn: Tokens) -> list[tuple[OpenSequence | None, TokenEvent, Charge]]:
        """Record a turn of the engine: who has got a place in its batch or lost it, and each event as `take` does."""
        for request_id in turn.report.admitted:
            self._place(request_id, True)
        for request_id in turn.report.preempted:
            self._place(request_id, False)
        if self._delayed:
            self._spare(turn)
        return [self.take(event, charge) for event, charge in turn.charged()]

    def take(self, event: TokenEvent, charge: Charge) -> tuple[OpenSequence | None, TokenEvent, Charge]:
        """Record an event. Returns its sequence, None where that was aborted meanwhile, and what its reader gets."""
        sequence = self._open.get(event.request_id)
        if sequence is None:
            return None, event, charge
        is_catching_up = sequence.is_catching_up
        if sequence.token_ids and not sequence.num_tokens_here:
            self._count_recomputed(sequence, event.num_cached_tokens)
        self._delayed.discard(event.request_id)
        shown = sequence.take(event, charge)
        if is_catching_up:
            self.recomputed_ns += charge.device_ns
        if event.finish_reason is not None:
            self.pop(event.request_id)
        return sequence, *shown

    def crashed(self, is_fault: bool) -> list[OpenSequence]:
        """The engine has died. Returns those that are to be refused for it, which are forgotten here."""
        self.trusts_cache = not (is_fault and self.is_trying)
        trial, self._trial = self._trial, []
        for sequence in trial:
            sequence.num_blames += is_fault
        for sequence in self:
            if sequence.is_placed:
                self._delayed.add(sequence.request.request_id)
            sequence.move()
            sequence.is_suspect |= is_fault
            self.has_moved = True
        poisonous = [each for each in self if each.num_blames >= MAX_BLAMES]
        for sequence in poisonous:
            self.pop(sequence.request.request_id)
        self.sequences["refused"] += len(poisonous)
        self.is_trying = any(each.is_suspect for each in self)
        return poisonous

    def ready(self) -> list[OpenSequence]:
        """Sequences to send to the engine now, which count as sent: the next suspects, or all who wait."""
        if self.is_trying:
            return self._next_trial()
        return self._sent([each for each in self if not each.is_sent])

    def _spare(self, turn: Tokens) -> None:
        """Charge nobody with the shares of sequences that a death keeps from this step.

        A decode costs the same however many sequences share it, so those that have caught up would pay for the others.
        """
        decoding = [
            (sequence, charge)
            for event, charge in turn.charged()
            if (sequence := self._open.get(event.request_id)) is not None and sequence.num_tokens_here
        ]
        num_delayed = len(self._delayed)
        for sequence, charge in decoding:
            share_ns = (charge.device_ns - sequence.here_ns) * num_delayed // (len(decoding) + num_delayed)
            sequence.spared_ns += share_ns
            self.recomputed_ns += share_ns

    def _count_recomputed(self, sequence: OpenSequence, num_cached: int) -> None:
        """A sequence goes on, of whose prompt and tokens its engine had so many in its cache."""
        num_prompt, num_generated = len(sequence.request.prompt_token_ids), len(sequence.token_ids)
        self.recomputed_tokens["prompt"] += max(0, num_prompt - num_cached)
        self.recomputed_tokens["generated"] += num_generated - max(0, num_cached - num_prompt)

    def _place(self, request_id: str, is_placed: bool) -> None:
        sequence = self._open.get(request_id)
        if sequence is not None:
            sequence.is_placed = is_placed

    def _next_trial(self) -> list[OpenSequence]:
        for sequence in self._trial:
            if sequence.num_tokens_here >= TRIAL_TOKENS:
                sequence.is_suspect, sequence.num_blames = False, 0
        self._trial = [each for each in self._trial if each.is_suspect]
        suspects = [each for each in self if each.is_suspect]
        self.is_trying = bool(suspects)
        if not suspects:
            return self.ready()
        blamed = [each for each in suspects if each.num_blames]
        if blamed:
            chosen = [] if self._trial else blamed[:1]
        else:
            num_behind = sum(not each.num_tokens_here for each in self._trial)
            waiting = sorted((each for each in suspects if not each.is_sent), key=lambda each: -each.num_waits)
            chosen = waiting[: TRIAL_SIZE - num_behind]
        self._trial += chosen
        return self._sent(chosen)

    def _sent(self, sequences: list[OpenSequence]) -> list[OpenSequence]:
        for sequence in sequences:
            sequence.is_sent = True
            if sequence.token_ids:
                self.sequences["resumed"] += 1
        return sequences
