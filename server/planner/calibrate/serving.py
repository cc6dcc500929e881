"""Published load tests, simulated: tokens a second, TTFT and time per token of a serving stack under many users.

A row's stack is text-generation-inference or vLLM over static slots (slot_engine.py), its clients those of
load_generators.py, its steps those of the cost model. What a stack adds are five coefficients of the calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from server.clock import NS
from server.config import CacheConfig, SchedulerConfig
from server.cost.calibration import Calibration, ServingCoefficients
from server.cost.model import CostModel
from server.cost.work import Runtime
from server.device.catalog import instance
from server.errors import DeviceError, SettingsError
from server.models.spec import ModelSpec
from server.planner.calibrate.contradictions import contradictions
from server.planner.calibrate.load_generators import WINDOW_S, LoadTest, OutputLengths
from server.planner.calibrate.observation import CONTINUOUS_SDK, Unusable, shape_of
from server.planner.calibrate.published import PublishedRow
from server.planner.calibrate.slot_engine import RouterPolicy, SlotEngine, SlotTimes
from server.planner.simulate.records import Records
from server.planner.simulate.routing import RoundRobin
from server.planner.simulate.simulator import Driver
from server.workload.workload import FloatArray

ON_DEVICE_SAMPLING_SDK = 22  # optimum-neuron on NxD Inference samples on the device
STACK_TGI_2_SDK = 19

# text-generation-inference: `--max-waiting-tokens` 20; `--waiting-served-ratio` 1.2 until 2.0.1, 0.3 since (the images
# of optimum-neuron for SDK 2.18 and 2.19). vLLM on Neuron encodes one prompt at a time, at once.
TGI_1 = RouterPolicy(1.2, 20)
TGI_2 = RouterPolicy(0.3, 20)
VLLM = RouterPolicy(0.0, 0, max_prompts=1)

QUANTITIES = ("throughput", "ttft", "itl")
ServingFigures = tuple[float, float, float]  # output tokens/s, and ms: in the order of QUANTITIES


@dataclass(frozen=True, slots=True)
class ServingRow:
    """A load test that can be simulated: the deployment, the clients, and what was measured."""

    row: PublishedRow
    group: str  # the family of the part: inf2, trn1
    model: CostModel
    shape: ModelSpec
    test: LoadTest
    policy: RouterPolicy
    num_slots: int
    max_len: int
    num_engines: int
    measured: dict[str, float]  # by quantity; those that the row states
    contradiction: str  # with other rows of the table; empty when there is none

    @classmethod
    def of(cls, row: PublishedRow, calibration: Calibration, contradiction: str = "") -> ServingRow:
        """Raises Unusable with the reason, DeviceError or SettingsError for what no part or type is."""
        test, counts, software = LoadTest.of(row), row.counts, row.label("framework")
        if test is None:
            raise Unusable("no load test of a known kind")
        if row.label("quality") not in ("a", "b"):
            raise Unusable(f"quality is {row.texts['quality']}")
        if not any(name in software for name in ("tgi", "vllm")) or row.sdk < CONTINUOUS_SDK:
            raise Unusable(f"no continuous batching is known of {row.texts['framework']} on SDK 2.{row.sdk}")
        missing = [
            name for name in ("tp", "batch_size", "max_seq_len", "input_len", "output_len") if name not in counts
        ]
        if missing:
            raise Unusable(f"{', '.join(missing)} not stated")
        measured = _measured(row)
        shape = shape_of(row)
        runtime = Runtime(row.texts["weight_dtype"] or "bf16", counts["batch_size"] > 1, row.sdk)
        is_tgi_1 = row.sdk < STACK_TGI_2_SDK
        return cls(
            row=row,
            group=row.texts["instance"].split(".")[0].removesuffix("n"),
            model=CostModel.of(shape, instance(row.texts["instance"]), counts["tp"], runtime, calibration),
            shape=shape,
            test=test,
            policy=VLLM if "vllm" in software else TGI_1 if is_tgi_1 else TGI_2,
            num_slots=counts["batch_size"],
            max_len=counts["max_seq_len"],
            num_engines=counts.get("dp", 1),
            measured=measured,
            contradiction=contradiction,
        )

    def times(self, coefficients: ServingCoefficients) -> SlotTimes:
        """Times of one engine, each prompt padded to the compiled length."""
        slots_host_s = coefficients.slot_host_s
        if self.row.sdk < ON_DEVICE_SAMPLING_SDK:
            slots_host_s += coefficients.sampling_logit_s * self.shape.vocab_size
        prompt = min(self.row.counts["input_len"], self.max_len)
        return SlotTimes(
            prefill_ns=round(self.model.prefill(prompt, self.max_len).elapsed_s * NS),
            decode_ns=round(self.model.decode(self.num_slots, self.max_len).elapsed_s * NS),
            slots_host_ns=slots_host_s * NS,
            request_host_ns=round(coefficients.request_host_s * NS),
        )

    def used_coefficients(self, coefficients: ServingCoefficients) -> tuple[float, ...]:
        """The coefficients that this row's prediction depends on; 0 for the others."""
        c, is_host_sampled = coefficients, self.row.sdk < ON_DEVICE_SAMPLING_SDK
        clients = (c.client_spacing_s, c.stop_rate) if self.test.is_waves else (0.0, 0.0)
        return c.request_host_s, c.slot_host_s, c.sampling_logit_s if is_host_sampled else 0.0, *clients

    def predict(self, coefficients: ServingCoefficients, num_waves: int | None = None) -> ServingFigures:
        """The figures that the tool of the row would print; of `num_waves` waves instead of all."""
        times, answers = self.times(coefficients), OutputLengths.of(self.row, coefficients)
        most_per_s = self.num_engines * self.num_slots / answers.mean / times.decode_ns * NS
        num_runs = max(1, min(self.test.num_waves, num_waves or self.test.num_waves))
        runs = [self._run(times, answers, most_per_s, coefficients, i) for i in range(num_runs)]
        seconds = sum(run.seconds for run in runs)
        tokens, ttft, latency = (
            np.concatenate([getattr(run, n) for run in runs]) for n in ("tokens", "ttft", "latency")
        )
        if not len(tokens):
            return 0.0, float("inf"), float("inf")
        has_ttft = "incl" in self.row.label("tpot_stat")
        itl = latency / tokens if has_ttft else (latency - ttft) / np.maximum(tokens - 1, 1)
        middle = {name: np.median if self.row.label(name).startswith("p50") else np.mean for name in _STATS}
        if "p50" in self.row.label("tpot_stat"):
            middle["tpot_stat"] = np.median
        return float(tokens.sum()) / seconds, float(middle["ttft_stat"](ttft)), float(middle["tpot_stat"](itl))

    def _run(
        self, times: SlotTimes, answers: OutputLengths, most_per_s: float, coefficients: ServingCoefficients, seed: int
    ) -> _Run:
        workload = self.test.workload(answers, most_per_s, coefficients, seed)
        records = Records(len(workload))
        engines = [SlotEngine(self.num_slots, self.policy, times, workload, records) for _ in range(self.num_engines)]
        driver = Driver(engines, workload, records, *_no_limits(), RoundRobin())
        if self.test.is_waves:
            driver.run()
        else:
            driver.run(self.test.users, round(WINDOW_S * NS))
        return _Run.of(records, None if self.test.is_waves else WINDOW_S)


_STATS = ("ttft_stat", "tpot_stat")


@dataclass(frozen=True, slots=True)
class _Run:
    """Measurements of a load tool: seconds in all; output tokens, and ms to the first and the last, of each answer."""

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
    """The stack's own limits are slots; nothing is refused."""
    most = 1 << 30
    return SchedulerConfig(most, most, most, most), CacheConfig(most, 32, False)


def _measured(row: PublishedRow) -> dict[str, float]:
    columns = zip(QUANTITIES, ("output_tok_s", "ttft_ms", "tpot_ms"), strict=True)
    found = {name: row.measures.get(column, 0.0) for name, column in columns}
    if any(value < 0 for value in found.values()):
        raise Unusable("a measured figure is negative")
    found = {name: value for name, value in found.items() if value > 0}
    if not found:
        raise Unusable("no throughput, TTFT or time per token")
    return found


def serving_rows(
    rows: Sequence[PublishedRow], calibration: Calibration
) -> tuple[list[ServingRow], list[tuple[str, str]]]:
    """The load tests of a table, and for those that cannot be simulated the reason."""
    found, skipped = [], []
    contradicted = contradictions(rows)
    for row in rows:
        if row.label("arrival") in ("", "static batch", "single"):
            continue
        try:
            found.append(ServingRow.of(row, calibration, contradicted.get(row.row_id, "")))
        except (Unusable, DeviceError, SettingsError) as error:
            skipped.append((row.row_id, f"serving: {error}"))
    return found, skipped


def with_coefficient(coefficients: ServingCoefficients, name: str, value: float) -> ServingCoefficients:
    """`coefficients` with one of them changed."""
    return replace(coefficients, **{name: value})
