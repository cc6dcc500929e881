"""A runner that adds the time of each step on the modelled accelerator, and an outbox that adds each request's share.

With pacing the runner also takes that long. It prices the plan and never looks at the result. Without pacing a step
ends when the host has computed it, and only the time without work counts as idle: modelled time and host time are two
accounts. The engine loop knows nothing of these.
"""

from __future__ import annotations

import logging

from ..clock import NS, Waiter
from ..cost.bucket_edges import ObservedPrompts
from ..cost.meter import Meter
from ..cost.pricer import Pricer, StepCharge
from ..cost.timeline import Timeline
from ..link.messages import Tokens
from ..types import DeviceStep, StepPlan, StepResult
from .loop import Outbox, Pending, Runner

log = logging.getLogger("neuronserve.engine")

PUNCTUAL_NS = 100_000  # a step that ends this little after it was due is not late

# Most of the host's work on a request before its first step that pacing counts as the accelerator's time. Less than any
# prefill.
MAX_HOST_NS = 4_000_000


class MeteredRunner:
    """Implements neuronserve.server.engine.loop.Runner."""

    def __init__(
        self, runner: Runner, pricer: Pricer, meter: Meter, clock: Waiter, is_paced: bool, num_stages: int = 1
    ) -> None:
        """Take `num_stages` times its price for a step to pass a pipeline; the next one follows after the price."""
        self._delays = num_stages - 1
        self._runner, self._pricer, self._meter, self._clock, self._is_paced = runner, pricer, meter, clock, is_paced
        self._prompts = ObservedPrompts(pricer.prompt_graphs)
        self._timeline = Timeline(self._now_ns())

    def submit(self, plan: StepPlan) -> Pending:
        charge = self._pricer.charge(plan)
        idle_ns, lag_ns = self._begin(plan)
        due_ns = self._timeline.step(charge.ns, self._delays * charge.ns)
        pending = self._runner.submit(plan)

        def collect() -> StepResult:
            result = pending()
            late_ns = self._end(due_ns)
            self._meter.add(plan, charge)
            lengths = (run.num_tokens for run in charge.prefills)  # 0 of a copy from another engine
            if self._is_paced and (edge := self._prompts.add(filter(None, lengths))) is not None:
                log.warning("%s", edge)
            # A compiled step has as many passes of a draft model whatever the number of drafts.
            draft_s = 0.0 if self._is_paced else result.draft_s
            return result._replace(device=_report(charge, idle_ns, lag_ns, late_ns), draft_s=draft_s)

        return collect

    def _begin(self, plan: StepPlan) -> tuple[int, int]:
        """Return the idle and the lost nanoseconds before the step."""
        now_ns = self._now_ns()
        if (
            len(plan.admitted) == len(plan.seqs) and not plan.follows
        ):  # nothing ran or waited before: a pause, however short
            return self._timeline.pause(self._begin_of_work(plan, now_ns)), 0
        return (self._timeline.bubble(now_ns), self._timeline.lag(now_ns)) if self._is_paced else (0, 0)

    def _begin_of_work(self, plan: StepPlan, now_ns: int) -> int:
        """Return when the pause before `plan` ended: if paced, when its first request had passed the stack's host.

        The model's time of a prefill was measured by clients, so it includes the host's work before the device starts.
        """
        if not self._is_paced or plan.received_time is None:
            return now_ns
        return max(round((plan.received_time + self._pricer.request_s) * NS), now_ns - MAX_HOST_NS)

    def _end(self, due_ns: int) -> int | None:
        """Hold a paced step until it is due; return by how much the host missed that, in computing or in waking up."""
        if not self._is_paced:
            self._timeline.host_step(self._now_ns())
            return None
        self._clock.wait_until(due_ns / NS)
        late_ns = self._now_ns() - due_ns
        return late_ns if late_ns > PUNCTUAL_NS else 0

    def _now_ns(self) -> int:
        return round(self._clock.now() * NS)


class MeteredOutbox:
    """An outbox that sends with each event the device time of its request so far."""

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
