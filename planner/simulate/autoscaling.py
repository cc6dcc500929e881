"""How many replicas there should be, as Kubernetes' autoscalers decide. Policies over observations; no fleet, no clock.

Both are the HorizontalPodAutoscaler's rule, ceil(replicas x metric / target), over requests that replicas have open or
that wait. KEDA adds activity: none for a while, and the fleet goes to nothing. Where a default has no source beside it,
it is that of this project's Helm chart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, get_args

from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError

AutoscalePolicy = Literal["fixed", "reactive", "keda"]
MAX_REPLICAS = 10_000  # of one simulation

# kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale and the flags of kube-controller-manager, 1.34:
SYNC_NS = 15 * NS  # --horizontal-pod-autoscaler-sync-period, and the period of the default scaling policies
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
MOST_ADDED = 4  # default scaleUp policies: in a period as many pods more, or
MOST_GROWTH = 2  # so many times as many, whichever is more

# What a start takes: an instance joins the cluster, then the model is loaded; nothing is compiled.
# 70 and 80 s from launch to registration: github.com/aws/karpenter-provider-aws/issues/6128, 2024-05-17.
INSTANCE_BOOT_S = 75.0
# Llama-2-7B (13.5 GB) in 40 s on trn1.32xlarge with a full compile cache, measured by the Neuron team, 2024-04-09:
# github.com/aws-neuron/transformers-neuronx/issues/80, where a first start on SageMaker is said to take ten minutes.
LOAD_BYTES_PER_S = 13.5e9 / 40


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Who decides about the number of replicas, and within what. Seconds. Without any target: the policy's own."""

    autoscale: AutoscalePolicy = "fixed"
    min_replicas: int = 1  # 0 for keda alone
    max_replicas: int = 100  # KEDA's maxReplicaCount
    target_utilization: float | None = None  # open requests for each slot
    target_waiting: float | None = None  # requests for each replica that no engine has begun
    startup_delay_s: float | None = None  # from launch to the first request; None: boot, and loading the weights
    scale_down_stabilization_s: float = (
        300.0  # HorizontalPodAutoscaler; the most that was asked for in this time counts
    )
    polling_interval_s: float = 30.0  # KEDA asks so often whether there is any activity
    cooldown_s: float = 300.0  # KEDA's cooldownPeriod: without activity for so long, the fleet goes to nothing

    def check(self) -> None:
        """Raises SettingsError for what cannot be."""
        if self.autoscale not in get_args(AutoscalePolicy):
            raise SettingsError(f"autoscale is {self.autoscale!r}: one of {', '.join(get_args(AutoscalePolicy))}")
        least = 0 if self.autoscale == "keda" else 1
        if self.min_replicas < least:
            raise SettingsError(f"min_replicas is {self.min_replicas}: {self.autoscale} keeps at least {least}")
        if not max(1, self.min_replicas) <= self.max_replicas <= MAX_REPLICAS:
            raise SettingsError(
                f"max_replicas is {self.max_replicas}: it is min_replicas {self.min_replicas}, and 1, to {MAX_REPLICAS}"
            )
        for name in ("target_utilization", "target_waiting", "polling_interval_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SettingsError(f"{name} is {value:g}: it must be above 0 and finite")
        for name in ("startup_delay_s", "scale_down_stabilization_s", "cooldown_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise SettingsError(f"{name} is {value:g}: it must be at least 0 and finite")

    @property
    def is_fixed(self) -> bool:
        """Nothing scales."""
        return self.autoscale == "fixed"

    def clamp(self, replicas: int) -> int:
        """The nearest number within the limits; what is fixed has none."""
        return replicas if self.is_fixed else max(self.min_replicas, min(self.max_replicas, replicas))

    def startup_ns(self, weight_bytes: int) -> int:
        """Nanoseconds from the launch of a replica until it takes requests."""
        seconds = self.startup_delay_s
        return round((INSTANCE_BOOT_S + weight_bytes / LOAD_BYTES_PER_S if seconds is None else seconds) * NS)


@dataclass(frozen=True, slots=True)
class Observation:
    """What an autoscaler may know at one instant."""

    time_ns: int
    num_replicas: int  # that run or start; not those that only finish what they have
    num_open: int  # requests that wait or run
    num_waiting: int  # of those, not begun


class Policy(Protocol):
    """Asked every SYNC_NS. Remembers what it has to."""

    def wanted(self, seen: Observation) -> int:
        """How many replicas should run or start."""
        ...


class Reactive:
    """HorizontalPodAutoscaler: the most replicas that any target asks for, at once; fewer only after a calm time."""

    def __init__(self, limits: Autoscaling, targets: Mapping[str, float]) -> None:
        """`targets`: what one replica should have, by the field of Observation."""
        self._limits, self._targets = limits, targets
        self._window_ns = round(limits.scale_down_stabilization_s * NS)
        self._asked: deque[tuple[int, int]] = deque()  # times, and what was asked for: each less than those before it

    def wanted(self, seen: Observation) -> int:
        """Never 0, from which it would not come back."""
        asked = max(1, *(self._asked_for(seen, field) for field in self._targets))
        return max(1, self._limits.clamp(self._stable(seen, asked)))

    def _asked_for(self, seen: Observation, field: str) -> int:
        needed: float = getattr(seen, field) / self._targets[field]
        if abs(needed - seen.num_replicas) <= TOLERANCE * seen.num_replicas:
            return seen.num_replicas
        return ceil(needed)

    def _stable(self, seen: Observation, asked: int) -> int:
        """No more than the scale-up policies allow, no less than was asked for in the window."""
        if not self._asked:  # Kubernetes begins with what is there
            self._asked.append((seen.time_ns, seen.num_replicas))
        while self._asked and self._asked[-1][1] <= asked:
            self._asked.pop()
        self._asked.append((seen.time_ns, asked))
        while self._asked[0][0] < seen.time_ns - self._window_ns:
            self._asked.popleft()
        now = seen.num_replicas
        if asked >= now:
            return min(asked, max(now + MOST_ADDED, now * MOST_GROWTH))
        return min(now, self._asked[0][1])


class Keda:
    """KEDA: a HorizontalPodAutoscaler while requests wait or did lately; otherwise the least that is allowed."""

    def __init__(self, limits: Autoscaling, targets: Mapping[str, float]) -> None:
        """As Reactive."""
        self._limits, self._targets = limits, targets
        self._scaler = Reactive(limits, targets)
        self._polling_ns, self._cooldown_ns = round(limits.polling_interval_s * NS), round(limits.cooldown_s * NS)
        self._next_poll_ns = self._last_active_ns = 0

    def wanted(self, seen: Observation) -> int:
        """0 only where `min_replicas` is."""
        if seen.time_ns >= self._next_poll_ns:
            self._next_poll_ns = seen.time_ns + self._polling_ns
            if any(getattr(seen, field) for field in self._targets):
                self._last_active_ns = seen.time_ns
                if not seen.num_replicas:
                    return self._limits.clamp(1)
        is_calm = not seen.num_replicas or seen.time_ns - self._last_active_ns > self._cooldown_ns
        return 0 if is_calm and not self._limits.min_replicas else self._scaler.wanted(seen)


@dataclass(frozen=True, slots=True)
class _Kind:
    make: Callable[[Autoscaling, Mapping[str, float]], Policy]
    utilization: float | None  # targets where none is given
    waiting: float | None


_KINDS: dict[AutoscalePolicy, _Kind] = {
    "reactive": _Kind(Reactive, 0.8, None),
    "keda": _Kind(Keda, None, 4.0),
}


def policy_of(options: Autoscaling, num_slots: int) -> Policy:
    """The policy of `options`, which scale, for replicas of `num_slots` slots."""
    kind = _KINDS[options.autoscale]
    utilization, waiting = options.target_utilization, options.target_waiting
    if utilization is None and waiting is None:
        utilization, waiting = kind.utilization, kind.waiting
    targets = {}
    if utilization is not None:
        targets["num_open"] = utilization * num_slots
    if waiting is not None:
        targets["num_waiting"] = waiting
    return kind.make(options, targets)
