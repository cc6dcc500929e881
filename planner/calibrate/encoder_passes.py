"""Published encoder rows as work of the cost model: the time of one pass on one core, from latency and throughput.

By Little's law throughput x latency / batch passes are in flight. While there are no more of them than cores, a pass
takes its latency; beyond, they queue, and the cores' time gives the pass. The cores of a pipeline share one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...server.cost.evidence import Point
from ...server.cost.model import LABELS
from ...server.cost.shape import matrix_billions
from ...server.cost.work import Runtime, StepWork
from ...server.device.catalog import instance
from ...server.device.instances import Instance
from ...server.errors import DeviceError
from ...server.models.public import known_model
from ...server.models.spec import ModelSpec
from .encoder_rows import EncoderMeasurement
from .observation import MS, Observation, Unusable

# Models whose layers have the sizes of another one's, by their config.json. ALBERT's layers share one set of weights,
# which changes its size and none of its products.
SAME_LAYERS = {
    "albert-base-v2": "google-bert/bert-base-uncased",
    "albert-large-v2": "google-bert/bert-large-uncased",
    "electra-base-discriminator": "google-bert/bert-base-uncased",
    "electra-large-discriminator": "google-bert/bert-large-uncased",
}
LEAST_IN_FLIGHT = 0.75  # a benchmark has a pass in flight at all times
IN_FLIGHT = (0.6, 1.5)  # least and most share of the stated workers that may be in flight
TENSOR_PARALLEL, PIPELINE = "Tensor Parallel", "Model Pipeline"
LABELLED = "Sequence Classification"  # task that returns two values for a text instead of a vector for each token


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a row's encoder: its sizes, and its time on one core."""

    row: EncoderMeasurement
    model: ModelSpec
    part: Instance
    texts: int
    length: int
    seconds: float

    @classmethod
    def of(cls, row: EncoderMeasurement) -> Pass:
        """Read a row. Raises Unusable with the reason, DeviceError for an unknown instance."""
        if row.texts["run_mode"] == TENSOR_PARALLEL:
            raise Unusable("an encoder with a decoder is compared by its steps")
        model, part = encoder_of(row), instance(row.part)
        texts, length = row.count("batch"), row.length
        return cls(row, model, part, texts, length, pass_s(row, row.count("cores", part.num_cores)))

    def observation(self) -> Observation:
        """Return the pass as work. Raises Unusable for a time below the data sheet's peak."""
        steps = StepWork(self.model, self.part, 1, Runtime())
        values = LABELS if self.row.texts["task"] == LABELLED else self.length * self.model.hidden_size
        work = steps.encode(self.length, self.texts, self.texts * values)
        if self.seconds < work["encode_matmul"]:
            raise Unusable(
                f"{self.texts} texts in {self.seconds / MS:.3g} ms are beyond the peak of one core: how a batch was "
                "spread over cores is not stated"
            )
        kind, layers = "single" if self.texts == 1 else "batch", size_of_layers(self.model)
        return Observation(
            row_id=self.row.row_id,
            model=layers,
            source=self.row.source,
            sdk=self.row.sdk,
            shape=self.model,
            group=f"encode_{kind}_{self.row.part.split('.')[0]}",
            setup=("encode", self.row.source, self.row.sdk, layers, self.texts, self.length),
            point=Point(
                "encode",
                self.part.chip.name,
                matrix_billions(self.model),
                1,
                self.texts,
                self.length,
                steps.weight_bytes,
                has_experts=False,
            ),
            seconds=self.seconds,
            work=work,
        )


def size_of_layers(model: ModelSpec) -> str:
    """Return what a pass's time depends on, as a name: BERT and RoBERTa, cased or not, are one model here."""
    return f"{model.num_layers} layers of {model.hidden_size}"


def encoder_of(row: EncoderMeasurement) -> ModelSpec:
    """Return the dimensions of the row's model. Raises Unusable for one that is unknown, such as a model of images."""
    name = row.texts["model"].lower().rpartition("/")[2]
    found = known_model(SAME_LAYERS.get(name, row.model))
    if found is None:
        raise Unusable(f"{row.texts['model']} is no known model of text")
    return found


def pass_s(row: EncoderMeasurement, cores: int) -> float:
    """Return the seconds of one pass on one core. Raises Unusable when the row contradicts Little's law."""
    texts, rate, latency_s = row.count("batch"), row.number("throughput_per_s"), row.number("latency_p50_ms") * MS
    in_flight = rate * latency_s / texts
    stated = row.count("n_models", 0) * row.count("workers_per_model", 1) or row.count("threads", 0)
    low, high = (share * stated for share in IN_FLIGHT)
    if in_flight < max(LEAST_IN_FLIGHT, low) or (stated and in_flight > high):
        raise Unusable(
            f"{rate:g} texts/s of {latency_s / MS:g} ms are {in_flight:.2g} passes in flight: "
            f"{f'{stated} workers are stated' if stated else 'a benchmark has at least one'}"
        )
    busy_s = cores * texts / rate
    return busy_s if row.texts["run_mode"] == PIPELINE else min(latency_s, busy_s)


def observe_passes(rows: list[EncoderMeasurement]) -> tuple[list[Observation], list[tuple[str, str]]]:
    """Return the usable rows' passes, and row and reason of the others."""
    found, skipped = [], []
    for row in rows:
        try:
            found.append(Pass.of(row).observation())
        except (Unusable, DeviceError) as error:
            skipped.append((row.row_id, f"encode: {error}"))
    return found, skipped
