"""Published rows as work of the cost model: the definitions of TPOT and TTFT, in one place.

The definitions (docs/cost-model.md): TPOT as a P50 is the step of the bucket that holds the median token; as a mean it
is the mean over buckets; "includes prefill" is (prefill + steps) / tokens. TTFT of a batch is that of all its prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from server.cost.shape import matrix_params
from server.cost.work import Runtime, StepWork, Term, Work
from server.device.catalog import instance
from server.errors import DeviceError, SettingsError
from server.models.public import known_model
from server.models.spec import ModelSpec
from server.planner.calibrate.published import EXPERTS, SHAPE, PublishedRow

SMALLEST_BUCKET = 128  # NxD Inference feature-guide.rst: powers of two from 128
CONTINUOUS_SDK = 17  # optimum-neuron batches continuously since the releases built on 2.17
SINGLE_BUCKET_SDK = 21  # optimum-neuron on NxD compiles one bucket
PARAMS_TOLERANCE = 0.12  # a row's stated size may differ from the shape's by this share before the name is doubted
COARSE_MS = 1000.0  # readings rounded to 0.1 s are used from here on: rounding is at most 5 %
MS = 1e-3

# Fields of a known model that the cost model reads and no column of the published file holds.
UNSTATED = ("is_gated", "expert_layers", "dense_intermediate_size", "shared_intermediate_size", "has_attention_gate")

NOTHING: Work = (0.0,) * len(Term)


class Unusable(Exception):
    """The row cannot be compared with the model; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured time, and the work that took it."""

    row_id: str
    model: str
    shape: ModelSpec
    group: str
    series: tuple[object, ...]  # rows of one series are repetitions: together they weigh as the root of their number
    seconds: float
    decode: Work
    prefill: Work


def observe(row: PublishedRow) -> tuple[list[Observation], list[str]]:
    """The row's decode and prefill observations, and for each that is missing the reason."""
    found, reasons = [], []
    for kind in (_decode, _prefill):
        try:
            found.append(kind(row))
        except (Unusable, DeviceError, SettingsError) as error:
            reasons.append(f"{kind.__name__[1:]}: {error}")
    return found, reasons


def shape_of(row: PublishedRow) -> ModelSpec:
    """The model's dimensions: the row's own, or those of a known model of that name. Raises Unusable."""
    if row.label("arch") not in ("dense", "moe", ""):
        raise Unusable(f"architecture {row.label('arch')} is not modelled")
    counts = dict(row.counts)
    if "hidden_size" in counts and "n_heads" in counts:
        counts.setdefault("head_dim", counts["hidden_size"] // counts["n_heads"])
    if any(name not in counts for name in SHAPE):
        known, params_b = known_model(row.texts["model"]), row.measures.get("params_b")
        if known is None or (params_b and size_error(known, params_b) > PARAMS_TOLERANCE):
            raise Unusable("the shape is not stated and the model is not a known one")
        return _bare(known)
    if counts["n_heads"] % counts["n_kv_heads"]:
        raise Unusable(f"{counts['n_heads']} heads cannot share {counts['n_kv_heads']} KV heads")
    experts: dict[str, Any] = {field: counts.get(name, 0) for name, field in EXPERTS.items()}
    if bool(experts["num_experts"]) != bool(experts["experts_per_token"]):
        raise Unusable("only one of n_experts and experts_per_token is stated")
    sizes: dict[str, Any] = {field: counts[name] for name, field in SHAPE.items()}
    shape = ModelSpec("", **sizes, **experts, max_position=0)
    params_b = row.measures.get("params_b")
    if not params_b:
        return shape
    return min((shape, replace(shape, is_gated=False)), key=lambda model: size_error(model, params_b))


def _bare(model: ModelSpec) -> ModelSpec:
    """The fields that the cost model reads, so that rows which agree in them count as one model."""
    sizes = {field: getattr(model, field) for field in (*SHAPE.values(), *EXPERTS.values(), *UNSTATED)}
    return ModelSpec("", **sizes, max_position=0)


def size_error(model: ModelSpec, params_b: float) -> float:
    """Relative distance of the model's size from `params_b` billions, with the output layer tied or not."""
    untied = matrix_params(model)
    tied = untied - model.vocab_size * model.hidden_size
    return min(abs(size / 1e9 / params_b - 1) for size in (untied, tied))


@dataclass(frozen=True, slots=True)
class _Setup:
    """Compilation and batch of the row's model."""

    row: PublishedRow
    shape: ModelSpec
    work: StepWork
    batch: int
    is_continuous: bool
    max_len: int

    @classmethod
    def of(cls, row: PublishedRow) -> _Setup:
        if "tp" not in row.counts:
            raise Unusable("the tensor-parallel degree is not stated")
        shape = shape_of(row)
        batch, count = row.counts.get("batch_size", 1), row.counts
        software = row.label("framework")
        serves = any(name in software for name in ("optimum", "tgi", "vllm"))
        is_continuous = serves and batch > 1 and row.sdk >= CONTINUOUS_SDK
        max_len = count.get("max_seq_len", 0) or count.get("input_len", 0) + count.get("output_len", 0)
        if not max_len:
            raise Unusable("no length is stated")
        runtime = Runtime(row.texts["weight_dtype"] or "bf16", is_continuous, row.sdk)
        work = StepWork(shape, instance(row.texts["instance"]), row.counts["tp"], runtime)
        return cls(row, shape, work, batch, is_continuous, max_len)

    @property
    def has_one_bucket(self) -> bool:
        is_nxd = "optimum" in self.row.label("framework") and self.row.sdk >= SINGLE_BUCKET_SDK
        return self.is_continuous or is_nxd or "nxd" in self.row.label("framework")

    def group(self, kind: str) -> str:
        """Group of errors, such as decode_dense_inf2, decode_trn1, decode_moe_inf2."""
        part = self.row.texts["instance"].split(".")[0].removesuffix("n")
        arch = "moe" if self.shape.num_experts else "dense"
        return f"{kind}_{part}" if part == "trn1" and arch == "dense" else f"{kind}_{arch}_{part}"

    def series(self, kind: str) -> tuple[object, ...]:
        return (kind, self.row.texts["source_group"], self.shape, self.work.core.tp, self.batch, self.row.sdk)

    def observation(self, kind: str, milliseconds: float, decode: Work, prefill: Work) -> Observation:
        return Observation(
            row_id=self.row.row_id,
            model=self.row.texts["model"],
            shape=self.shape,
            group=self.group(kind),
            series=self.series(kind),
            seconds=milliseconds * MS,
            decode=decode,
            prefill=prefill,
        )


def bucket(tokens: int) -> int:
    """The power of two from 128 that holds `tokens`."""
    return max(SMALLEST_BUCKET, 1 << (tokens - 1).bit_length())


def mean_bucket(prompt: int, output: int, longest: int) -> int:
    """Mean over the generated tokens of the bucket that each step ran on, none above `longest`."""
    total, done = 0, 0
    while done < output:
        size = min(bucket(prompt + done + 1), longest)
        steps = output - done if size == longest else min(output - done, size - prompt - done)
        total, done = total + steps * size, done + steps
    return round(total / output)


def _check_usable(row: PublishedRow, flag: str, measure: str) -> float:
    if not row.label(flag).startswith(("yes", "approx", "tpot only")):
        raise Unusable(f"{flag} is {row.label(flag)!r}")
    if row.label("quality") not in ("a", "b"):
        raise Unusable(f"quality is {row.texts['quality']}")
    value = row.measures.get(measure, 0.0)
    if value <= 0:
        raise Unusable(f"no {measure}")
    return value


def _decode(row: PublishedRow) -> Observation:
    measured = _check_usable(row, "use_decode_fit", "tpot_ms")
    setup, stat, counts = _Setup.of(row), row.label("tpot_stat"), row.counts
    prompt, output = counts.get("input_len", 0), counts.get("output_len", 0)
    if setup.has_one_bucket:
        size = setup.max_len
    elif not output:
        size = bucket(setup.max_len)
    elif stat.startswith("p50, excl"):
        size = bucket(prompt + output // 2 + 1)
    else:
        size = mean_bucket(prompt, output, bucket(setup.max_len))
    prefill = NOTHING
    if "includes prefill" in stat and output:
        prefill = _scaled(_whole_prefill(setup, prompt), 1 / output)
    elif "includes ttft" in stat and output:
        measured -= row.measures.get("ttft_ms", 0.0) / output
        if measured <= 0:
            raise Unusable("ttft_ms leaves no time for the other tokens")
    return setup.observation("decode", measured, setup.work.decode(setup.batch, size), prefill)


def _prefill(row: PublishedRow) -> Observation:
    if not row.label("use_prefill_fit").startswith("yes"):
        raise Unusable(f"use_prefill_fit is {row.label('use_prefill_fit')!r}")
    measured = _check_usable(row, "use_prefill_fit", "ttft_ms")
    if "coarse" in row.label("use_prefill_fit") and measured < COARSE_MS:
        raise Unusable(f"{measured:g} ms rounded to 0.1 s")
    setup = _Setup.of(row)
    prompt = row.counts.get("input_len", 0)
    if not prompt:
        raise Unusable("no input_len")
    return setup.observation("prefill", measured, NOTHING, _whole_prefill(setup, prompt))


def _whole_prefill(setup: _Setup, prompt: int) -> Work:
    """Continuous batching encodes prompts one by one in the full bucket, a static batch all of its prompts at once.

    Under a load test a first token waits for its own prompt only.
    """
    if not setup.is_continuous:
        return setup.work.prefill(bucket(prompt), setup.batch)
    is_load_test = "tgi" in setup.row.label("framework")
    work = list(_scaled(setup.work.prefill(setup.max_len), 1 if is_load_test else setup.batch))
    work[Term.HOST] = 1.0  # once for the batch
    return tuple(work)


def _scaled(work: Work, factor: float) -> Work:
    return tuple(amount * factor for amount in work)
