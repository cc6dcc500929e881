"""Simulation of published load tests: tokens a second, TTFT and time per token of a serving stack under many users.

A row's stack is one of server/cost/stacks.py over static slots (slot_engine.py), its clients are those of
load_generators.py, and its steps come from the cost model. The coefficients of hosts and clients are fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf

import numpy as np

from ...server.clock import NS
from ...server.config import CacheConfig, SchedulerConfig
from ...server.config.formats import StackName
from ...server.cost.calibration import Calibration
from ...server.cost.evidence import Phase, Point, Series
from ...server.cost.model import CostModel
from ...server.cost.stacks import HostWork, Stack
from ...server.errors import DeviceError, SettingsError
from ...server.models.spec import ModelSpec
from ...server.scheduler.batching import POLICIES, BatchingPolicy
from ...workload.workload import FloatArray, Workload
from ..simulate.driver import Driver
from ..simulate.records import Records
from ..simulate.routing import RoundRobin
from .contradictions import contradictions
from .load_figures import QUANTITIES, Quantity, measured_figures
from .load_generators import WINDOW_S, Clients, LoadTest, OutputLengths, is_llmperf, is_window_known
from .observation import Setup, Unusable
from .published import PublishedRow
from .slot_engine import SlotEngine, SlotTimes
from .software import server_of

ON_DEVICE_SAMPLING_SDK = 22  # optimum-neuron on NxD Inference samples on the device
STACK_TGI_2_SDK = 19  # images before it have TGI 1, whose --waiting-served-ratio is 1.2
TGI_1 = replace(POLICIES["tgi"], waiting_ratio=1.2)

SATURATED = 0.8  # share of the highest measured tokens a second of a deployment

ServingFigures = tuple[float, float, float]  # output tokens/s, and ms: in the order of QUANTITIES


@dataclass(frozen=True, slots=True)
class ServingCoefficients:
    """Coefficients of a fit to load tests: hosts of stacks, and clients."""

    hosts: Mapping[StackName, HostWork] = field(default_factory=dict)
    clients: Clients = field(default_factory=Clients)

    def host(self, stack: StackName) -> HostWork:
        """Return the host time of a stack; zero without a load test of the stack."""
        return self.hosts.get(stack, HostWork())


def stack_of(row: PublishedRow) -> Stack:
    """Return the stack of a load test, as it was at the row's release. Raises Unusable for an unknown stack."""
    server = server_of(row)
    if server is None:
        raise Unusable(f"no continuous batching is known of {row.texts['framework']} on SDK 2.{row.sdk}")
    if server.name == "tgi":
        return replace(server, samples_on_device=row.sdk >= ON_DEVICE_SAMPLING_SDK)
    return replace(server, samples_on_device=not row.samples_on_host)


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A load test that can be simulated: the deployment, the clients, and the measured figures."""

    row: PublishedRow
    group: str  # instance family, with a prefix for experts: inf2, trn1, moe_trn2
    model: CostModel
    shape: ModelSpec
    test: LoadTest
    stack: Stack
    num_slots: int
    lengths: tuple[int, int]  # positions that a prompt is padded to, and that a step reads of each slot
    num_engines: int
    measured: dict[Quantity, float]  # stated figures by quantity
    contradiction: str = ""  # with other rows of the table; empty if there is none
    is_saturated: bool = False  # arrivals are nearly as fast as the deployment: queues grow with time

    @classmethod
    def of(cls, row: PublishedRow, calibration: Calibration) -> ServingRow:
        """Return the row. Raises Unusable with the reason; DeviceError, SettingsError for unknown instances, types."""
        test, counts = LoadTest.of(row), row.counts
        if test is None:
            raise Unusable("no load test of a known kind")
        if row.label("quality") not in ("a", "b"):
            raise Unusable(f"quality is {row.texts['quality']}")
        stack = stack_of(row)
        missing = [
            name for name in ("tp", "batch_size", "max_seq_len", "input_len", "output_len") if name not in counts
        ]
        if missing:
            raise Unusable(f"{', '.join(missing)} not stated")
        setup = Setup.of(row)
        part = row.texts["instance"].split(".")[0].removesuffix("n")
        return cls(
            row=row,
            group=f"moe_{part}" if setup.shape.experts else part,
            model=CostModel(calibration, setup.work, setup.part),
            shape=setup.shape,
            test=test,
            stack=stack,
            num_slots=setup.batch,
            lengths=(setup.prompt_length(counts["input_len"]), setup.step_length(is_loaded=True)),
            num_engines=counts.get("dp", 1),
            measured=measured_figures(row),
        )

    def under(self, calibration: Calibration) -> ServingRow:
        """Return the row with the step times of another calibration."""
        return replace(self, model=CostModel(calibration, self.model.step_work, self.model.instance))

    @property
    def policy(self) -> BatchingPolicy:
        """Policy of encoding waiting prompts, as it was at the row's release."""
        is_tgi_1 = self.stack.name == "tgi" and self.row.sdk < STACK_TGI_2_SDK
        return TGI_1 if is_tgi_1 else POLICIES[self.stack.batching]

    @property
    def source(self) -> str:
        return self.row.texts["source_group"]

    @property
    def series(self) -> Series:
        """Source, release and model: rows of one series come from one sweep, and their errors are alike."""
        return self.source, self.row.sdk, self.row.texts["model"]

    @property
    def load(self) -> str:
        """How busy the deployment is: a single user, more requests than slots, or between."""
        if self.test.users == 1:
            return "single"
        most = self.num_slots * self.num_engines
        return "full" if self.is_saturated or (self.test.users or 0) > most else "shared"

    def point(self, phase: Phase) -> Point:
        """Return the coordinates of the deployment among the measured ones."""
        return self.model.point(phase, self.num_slots, self.lengths[1])

    @property
    def fitted(self) -> dict[Quantity, float]:
        """Measured figures that a fit may use: not the TTFT of a queue that grows."""
        return {name: value for name, value in self.measured.items() if name != "ttft" or not self.is_saturated}

    @property
    def draws(self) -> bool:
        """Whether the host draws tokens at random: chat clients do not ask for the likeliest one, llmperf does.

        Text-generation-inference, router/src/server.rs (do_sample), and vLLM's default temperature of 1.
        """
        return not (self.stack.samples_on_device or is_llmperf(self.row))

    @property
    def waits_for_unknown_time(self) -> bool:
        """Whether users outnumber the slots in a test whose length, on which their waits depend, is not known."""
        return (self.test.users or 0) > self.num_slots * self.num_engines and not is_window_known(self.row)

    def times(self, host: HostWork, draw_s: float) -> SlotTimes:
        """Return the times of one engine. `draw_s`: added for each logit of a token that is drawn at random."""
        prompt, positions = self.lengths
        vocab = 0 if self.stack.samples_on_device else self.shape.vocab_size
        host = replace(host, logit_s=host.logit_s + draw_s) if self.draws else host
        return SlotTimes(
            prefill_ns=round(self.model.prefill(prompt, prompt).elapsed_s * NS),
            decode_ns=round(self.model.decode(self.num_slots, positions).elapsed_s * NS),
            host_ns=tuple(round(host.step_s(n, self.num_slots, vocab) * NS) for n in range(self.num_slots + 1)),
            request_host_ns=round(host.request_s * NS),
        )

    def used_coefficients(self, coefficients: ServingCoefficients) -> tuple[object, ...]:
        """Return the coefficients that this row's prediction depends on."""
        host, clients = coefficients.host(self.stack.host), coefficients.clients
        if self.stack.samples_on_device:
            host = replace(host, logit_s=0.0, copy_s=0.0)
        waves = (clients.spacing_s, clients.stop_rate) if self.test.is_waves else ()
        return host, waves, clients.draw_s if self.draws else 0.0

    def figures(self, coefficients: ServingCoefficients, num_waves: int | None = None) -> dict[Quantity, float]:
        """Return `predict` by quantity."""
        return dict(zip(QUANTITIES, self.predict(coefficients, num_waves), strict=True))

    def predict(self, coefficients: ServingCoefficients, num_waves: int | None = None) -> ServingFigures:
        """Return the figures that the row's tool would print, for `num_waves` waves or all."""
        clients = coefficients.clients
        times = self.times(coefficients.host(self.stack.host), clients.draw_s)
        answers = OutputLengths.of(self.row, clients)
        most_per_s = self.num_engines * self.num_slots / answers.mean / times.decode_ns * NS
        num_runs = max(1, min(self.test.num_waves, num_waves or self.test.num_waves))
        runs = [self._run(times, answers, most_per_s, clients, i) for i in range(num_runs)]
        seconds = sum(run.seconds for run in runs)
        tokens, ttft, latency = (
            np.concatenate([getattr(run, n) for run in runs]) for n in ("tokens", "ttft", "latency")
        )
        has_ttft = "incl" in self.row.label("tpot_stat")
        itl = latency / tokens if has_ttft else (latency - ttft) / np.maximum(tokens - 1, 1)
        is_median = {name: any(word in self.row.label(name) for word in ("p50", "median")) for name in _STATS}
        middle = {name: np.median if is_median[name] else np.mean for name in _STATS}
        return float(tokens.sum()) / seconds, float(middle["ttft_stat"](ttft)), float(middle["tpot_stat"](itl))

    def _run(self, times: SlotTimes, answers: OutputLengths, most_per_s: float, clients: Clients, seed: int) -> _Run:
        """Return the measurements of a wave, or of a window, doubled until an answer ends in it."""
        window_s = WINDOW_S
        while True:
            workload = self.test.workload(answers, most_per_s, clients, seed, window_s)
            run = self._measure(times, workload, window_s)
            if len(run.tokens):
                return run
            window_s *= 2

    def _measure(self, times: SlotTimes, workload: Workload, window_s: float) -> _Run:
        records = Records(len(workload))
        engines = [SlotEngine(self.num_slots, self.policy, times, workload, records) for _ in range(self.num_engines)]
        driver = Driver(engines, workload, records, *_no_limits(), RoundRobin())
        if self.test.is_waves:
            driver.run()
        else:
            driver.run(self.test.users, round(window_s * NS))
        return _Run.of(records, None if self.test.is_waves else window_s)


_STATS = ("ttft_stat", "tpot_stat")


@dataclass(frozen=True, slots=True)
class _Run:
    """Measurements of a load tool: total seconds; output tokens, and ms to the first and last token, of each answer."""

    seconds: float
    tokens: FloatArray
    ttft: FloatArray
    latency: FloatArray

    @classmethod
    def of(cls, records: Records, window_s: float | None) -> _Run:
        finish = np.array(records.finish_ns, dtype=np.float64)
        done = finish >= 0
        if window_s is not None:
            done &= finish <= window_s * NS
        sent, first = (np.array(times, dtype=np.float64)[done] for times in (records.sent_ns, records.first_token_ns))
        tokens = np.array(records.num_output, dtype=np.float64)[done]
        seconds = float(finish[done].max(initial=0.0)) / NS if window_s is None else window_s
        return cls(seconds, tokens, (first - sent) / 1e6, (finish[done] - sent) / 1e6)


@cache
def _no_limits() -> tuple[SchedulerConfig, CacheConfig]:
    """Return limits that refuse nothing; the stack's own limits are its slots."""
    most = 1 << 30
    return SchedulerConfig(most, most, most, most), CacheConfig(most, 32, False)


def serving_rows(
    rows: Sequence[PublishedRow], calibration: Calibration, stack: StackName | None = None
) -> tuple[list[ServingRow], list[tuple[str, str]]]:
    """Return the load tests of a table (of `stack` if given), and the reason for each that cannot be simulated."""
    found, skipped = [], []
    contradicted, most = contradictions(rows), _saturations(rows)
    for row in rows:
        if row.label("arrival") in ("", "static batch", "single"):
            continue
        try:
            one = ServingRow.of(row, calibration)
            if stack not in (None, one.stack.name):
                raise Unusable(f"a load test of {one.stack.name}")
            share = row.measures.get("output_tok_s", 0.0) / (most[_deployment(row)] or inf)
            is_saturated = share > SATURATED if one.test.users is None else one.waits_for_unknown_time
            contradiction = contradicted.get(row.row_id, "")
            found.append(replace(one, contradiction=contradiction, is_saturated=is_saturated))
        except (Unusable, DeviceError, SettingsError) as error:
            skipped.append((row.row_id, f"serving: {error}"))
    return found, skipped


def _saturations(rows: Sequence[PublishedRow]) -> dict[tuple[object, ...], float]:
    """Return the highest measured output tokens a second of each deployment."""
    most: dict[tuple[object, ...], float] = {}
    for row in rows:
        key = _deployment(row)
        most[key] = max(most.get(key, 0.0), row.measures.get("output_tok_s", 0.0))
    return most


def _deployment(row: PublishedRow) -> tuple[object, ...]:
    names = ("source_group", "model", "instance", "framework", "neuron_sdk")
    return (*(row.texts[name] for name in names), *(row.counts.get(name) for name in ("tp", "dp", "batch_size")))
