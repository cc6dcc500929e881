"""A runner around a runner that says what each step would take on the modelled part, and takes that long if asked to;
an outbox around an outbox that says what each request has taken; and an inbox around an inbox that lets requests wait
as long as the modelled stack's host works on them. The engine loop knows nothing of these.

Prices the plan, never looks at the result. Without pacing a step ends when the host has computed it, and only the time
without work counts as idle: modelled time and the host's are two accounts.
"""

from __future__ import annotations

from neuronserve.server.clock import NS, Clock, Waiter
from neuronserve.server.cost.meter import Meter
from neuronserve.server.cost.pricer import Pricer, StepCharge
from neuronserve.server.cost.timeline import Timeline
from neuronserve.server.engine.loop import Inbox, Outbox, Runner
from neuronserve.server.link.messages import Abort, Add, Command, Shutdown, Tokens
from neuronserve.server.types import DeviceStep, StepPlan, StepResult

PUNCTUAL_NS = 100_000  # a step that ends this little after it was due is not late

# Of the host's work on a request before its first step, what pacing counts as the part's time. Less than any prefill.
MAX_HOST_NS = 5_000_000


class MeteredRunner:
    """Implements neuronserve.server.engine.loop.Runner."""

    def __init__(self, runner: Runner, pricer: Pricer, meter: Meter, clock: Waiter, is_paced: bool) -> None:
        self._runner, self._pricer, self._meter, self._clock, self._is_paced = runner, pricer, meter, clock, is_paced
        self._timeline = Timeline(self._now_ns())

    def execute(self, plan: StepPlan) -> StepResult:
        charge = self._pricer.charge(plan)
        idle_ns, lag_ns = self._begin(plan)
        due_ns = self._timeline.step(charge.ns)
        result = self._runner.execute(plan)
        late_ns = self._end(due_ns)
        self._meter.add(plan, charge)
        return result._replace(device=_report(charge, idle_ns, lag_ns, late_ns))

    def _begin(self, plan: StepPlan) -> tuple[int, int]:
        """Idle and lost nanoseconds before the step."""
        now_ns = self._now_ns()
        if len(plan.admitted) == len(plan.seqs) and not plan.follows:  # nobody ran or waited: a pause, however short
            return self._timeline.pause(self._begin_of_work(plan, now_ns)), 0
        return 0, self._timeline.lag(now_ns) if self._is_paced else 0

    def _begin_of_work(self, plan: StepPlan, now_ns: int) -> int:
        """When the pause before `plan` ended: if paced, when its first request was through the stack's host.

        The model's time of a prefill is one that clients measured, with the host's work before the device starts in it.
        """
        if not self._is_paced or plan.received_time is None:
            return now_ns
        return max(round((plan.received_time + self._pricer.request_s) * NS), now_ns - MAX_HOST_NS)

    def _end(self, due_ns: int) -> int | None:
        """Hold a paced step until it is due; returns by how much the host missed that, in computing or in waking up."""
        if not self._is_paced:
            self._timeline.host_step(self._now_ns())
            return None
        self._clock.wait_until(due_ns / NS)
        late_ns = self._now_ns() - due_ns
        return late_ns if late_ns > PUNCTUAL_NS else 0

    def _now_ns(self) -> int:
        return round(self._clock.now() * NS)


class PacedInbox:
    """An inbox that hands over a request `request_s` seconds after its receipt, and everything else at once."""

    def __init__(self, inbox: Inbox, request_s: float, clock: Clock) -> None:
        self._inbox, self._request_s, self._clock = inbox, request_s, clock
        self._held: dict[str, tuple[float, Add]] = {}  # by request: when its time comes

    def drain(self, timeout_s: float) -> list[Command]:
        """All whose time has come; an empty list may also mean that one's is near."""
        until_s = min((due_s - self._clock.now() for due_s, _ in self._held.values()), default=timeout_s)
        ready: list[Command] = []
        for command in self._inbox.drain(max(0.0, min(timeout_s, until_s))):
            if isinstance(command, Add) and command.request.received_time is not None:
                due_s = command.request.received_time + self._request_s
                self._held[command.request.request_id] = due_s, command
                continue
            ready += self._ended(command)
            ready.append(command)
        now_s = self._clock.now()
        due = [request_id for request_id, (due_s, _) in self._held.items() if due_s <= now_s]
        return ready + [self._held.pop(request_id)[1] for request_id in due]

    def _ended(self, command: Command) -> list[Command]:
        """The held requests that `command` ends: the engine must know a request to say that it ended."""
        match command:
            case Abort(request_id):
                ended = [request_id] if request_id in self._held else []
            case Shutdown():
                ended = list(self._held)
            case _:
                ended = []
        return [self._held.pop(request_id)[1] for request_id in ended]


class MeteredOutbox:
    """An outbox that sends with each event what its request has taken so far."""

    def __init__(self, outbox: Outbox, meter: Meter) -> None:
        self._outbox, self._meter = outbox, meter

    def put(self, tokens: Tokens) -> None:
        self._outbox.put(Tokens(tokens.events, tokens.report, self._meter.read(tokens.events)))


def _report(charge: StepCharge, idle_ns: int, lag_ns: int, late_ns: int | None) -> DeviceStep:
    costs = [run.cost for run in charge.runs]
    return DeviceStep(
        prefill_ns=charge.prefill_ns,
        decode_ns=charge.decode_ns,
        idle_ns=idle_ns,
        late_ns=late_ns,
        lag_ns=lag_ns,
        num_prefill_padding=sum(run.num_padding for run in charge.prefills),
        num_decode_padding=0 if charge.decode is None else charge.decode.num_padding,
        flops=round(sum(cost.flops for cost in costs)),
        hbm_bytes=round(sum(cost.hbm_bytes for cost in costs)),
    )
