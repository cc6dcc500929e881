"""Number of replicas, as Kubernetes' autoscalers decide it. Policies over observations, without a fleet or a clock.

Both use the HorizontalPodAutoscaler's rule, ceil(replicas x metric / target), over open or waiting requests. KEDA also
removes all replicas after a while without activity. A default without a source beside it is that of the Helm chart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Literal, Protocol, get_args

from ...server.clock import NS
from ...server.errors import SettingsError

AutoscalePolicy = Literal["fixed", "reactive", "keda"]
MAX_REPLICAS = 10_000  # in one simulation

# kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale and the flags of kube-controller-manager, 1.34:
SYNC_NS = 15 * NS  # --horizontal-pod-autoscaler-sync-period, and the period of the default scaling policies
TOLERANCE = 0.1  # --horizontal-pod-autoscaler-tolerance
MOST_ADDED = 4  # default scaleUp policies: pods added in a period, or
MOST_GROWTH = 2  # the factor of growth in a period, whichever is more

# Time of a start: an instance joins the cluster, then the model is compiled unless a cache has it, and loaded.
# 70 and 80 s from launch to registration: github.com/aws/karpenter-provider-aws/issues/6128, 2024-05-17.
INSTANCE_BOOT_S = 75.0
# Llama-2-7B (13.5 GB) in 40 s on trn1.32xlarge with a full compile cache, measured by the Neuron team, 2024-04-09:
# github.com/aws-neuron/transformers-neuronx/issues/80, which says that a first start on SageMaker takes ten minutes.
LOAD_BYTES_PER_S = 13.5e9 / 40


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """Policy for the number of replicas, and its limits. Times in seconds. Without targets the policy uses its own."""

    autoscale: AutoscalePolicy = "fixed"
    min_replicas: int = 1  # 0 only for keda
    max_replicas: int = 100  # KEDA's maxReplicaCount
    target_utilization: float | None = None  # open requests of each slot
    target_waiting: float | None = None  # waiting requests of each replica
    startup_delay_s: float | None = None  # from launch to the first request; None: boot, and loading the weights
    scale_down_stabilization_s: float = 300.0  # HorizontalPodAutoscaler: the highest wanted number in this time counts
    polling_interval_s: float = 30.0  # between KEDA's checks for activity
    cooldown_s: float = 300.0  # KEDA's cooldownPeriod: time without activity until all replicas go
    compile_at_start: bool = False  # without a compile cache: the cost model's time comes on top

    def check(self) -> None:
        """Raise SettingsError for impossible values."""
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
        """Whether the number of replicas never changes."""
        return self.autoscale == "fixed"

    def clamp(self, replicas: int) -> int:
        """Return the nearest number within the limits. A fixed number has no limits."""
        return replicas if self.is_fixed else max(self.min_replicas, min(self.max_replicas, replicas))

    def startup_ns(self, weight_bytes: int, compile_s: float = 0.0) -> int:
        """Return nanoseconds from the launch of a replica until it takes requests."""
        seconds = self.startup_delay_s
        seconds = INSTANCE_BOOT_S + weight_bytes / LOAD_BYTES_PER_S if seconds is None else seconds
        return round((seconds + compile_s * self.compile_at_start) * NS)


@dataclass(frozen=True, slots=True)
class Observation:
    """Facts that an autoscaler sees at one instant."""

    time_ns: int
    num_replicas: int  # running or starting, without draining ones
    num_open: int  # waiting or running requests
    num_waiting: int


class Policy(Protocol):
    """Autoscaling policy, called every SYNC_NS. It keeps its own state."""

    def wanted(self, seen: Observation) -> int:
        """Return how many replicas should run or start."""
        ...


class Reactive:
    """HorizontalPodAutoscaler: it grows at once to the largest number for any target, and shrinks after a calm time."""

    def __init__(self, limits: Autoscaling, targets: Mapping[str, float]) -> None:
        """Take limits and targets. `targets` has the value for one replica by the field of Observation."""
        self._limits, self._targets = limits, targets
        self._window_ns = round(limits.scale_down_stabilization_s * NS)
        self._wanted: deque[tuple[int, int]] = deque()  # times and wanted numbers, each less than those before it

    def wanted(self, seen: Observation) -> int:
        """Return at least 1: from 0 the rule would never grow."""
        wanted = max(1, *(self._wanted_for(seen, field) for field in self._targets))
        return max(1, self._limits.clamp(self._stable(seen, wanted)))

    def _wanted_for(self, seen: Observation, field: str) -> int:
        needed: float = getattr(seen, field) / self._targets[field]
        if abs(needed - seen.num_replicas) <= TOLERANCE * seen.num_replicas:
            return seen.num_replicas
        return ceil(needed)

    def _stable(self, seen: Observation, wanted: int) -> int:
        """Return at most what the scale-up policies allow, and at least the highest wanted number of the window."""
        if not self._wanted:  # Kubernetes begins with the present number
            self._wanted.append((seen.time_ns, seen.num_replicas))
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((seen.time_ns, wanted))
        while self._wanted[0][0] < seen.time_ns - self._window_ns:
            self._wanted.popleft()
        now = seen.num_replicas
        if wanted >= now:
            return min(wanted, max(now + MOST_ADDED, now * MOST_GROWTH))
        return min(now, self._wanted[0][1])


class Keda:
    """KEDA: a HorizontalPodAutoscaler while there is recent activity; otherwise the least number allowed."""

    def __init__(self, limits: Autoscaling, targets: Mapping[str, float]) -> None:
        """Take the arguments of Reactive."""
        self._limits, self._targets = limits, targets
        self._scaler = Reactive(limits, targets)
        self._polling_ns, self._cooldown_ns = round(limits.polling_interval_s * NS), round(limits.cooldown_s * NS)
        self._next_poll_ns = self._last_active_ns = 0

    def wanted(self, seen: Observation) -> int:
        """Return 0 only if `min_replicas` is 0."""
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
    utilization: float | None  # default targets
    waiting: float | None


_KINDS: dict[AutoscalePolicy, _Kind] = {
    "reactive": _Kind(Reactive, 0.8, None),
    "keda": _Kind(Keda, None, 4.0),
}


def policy_of(options: Autoscaling, num_slots: int) -> Policy:
    """Return the policy of `options`, which must scale, for replicas of `num_slots` slots."""
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
