"""Published rows as work of the cost model, by the definitions of TPOT and TTFT.

The definitions (cost-model.md): TPOT as a P50 is the step of the bucket that holds the median token; as a mean it
is the mean over buckets; "includes prefill" is (prefill + steps) / tokens. TTFT of a static batch is that of all its
prompts; of anything else, that of one prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from ...server.cost.evidence import Phase, Point, Series
from ...server.cost.shape import matrix_billions, matrix_params
from ...server.cost.stacks import Stack
from ...server.cost.work import Runtime, StepWork, Work
from ...server.device.buckets import SMALLEST_BUCKET, powers_of_two, smallest
from ...server.device.catalog import instance
from ...server.device.instances import Instance
from ...server.errors import DeviceError, SettingsError
from ...server.models.layer import AttentionSpec, ExpertsSpec, FeedForward, LayerSpec, NetworkSpec
from ...server.models.public import known_model
from ...server.models.sizes import DecoderSizes
from ...server.models.spec import EmbeddingSpec, HeadSpec, ModelSpec, StackSpec
from .published import EXPERTS, SHAPE, PublishedRow
from .software import CONTINUOUS_SDK, SINGLE_BUCKET_SDK, padding_of

SPREAD_SDK = 18  # since 2.18 grouped queries are spread over more cores than KV heads as today
PARAMS_TOLERANCE = 0.12  # a row's stated size may differ from the shape's by this share before the name is doubted
COARSE_MS = 1000.0  # least used time among those rounded to 0.1 s: rounding is at most 5 %
DEVICE_TIMES = ("device time", "context encoding", "context_encoding")  # in ttft_stat: of the graph, without the host
STATIC = "static batch"  # arrival of rows whose prompts are sent together
MS = 1e-3


class Unusable(Exception):
    """The row cannot be compared with the model. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured time, and the work that took it."""

    row_id: str
    model: str
    source: str
    sdk: int  # minor release
    shape: ModelSpec
    group: str
    setup: tuple[object, ...]  # rows of one setup are repetitions: together they weigh as the root of their number
    point: Point
    seconds: float
    work: Work

    @property
    def series(self) -> Series:
        """Source, release and model: rows of one series come from one sweep, and their errors are alike."""
        return self.source, self.sdk, self.model


def observe(row: PublishedRow) -> tuple[list[Observation], list[str]]:
    """Return the row's decode and prefill observations, and the reason for each missing one."""
    found, reasons = [], []
    for kind in (_decode, _prefill):
        try:
            found.append(kind(row))
        except (Unusable, DeviceError, SettingsError) as error:
            reasons.append(f"{kind.__name__[1:]}: {error}")
    return found, reasons


def shape_of(row: PublishedRow) -> ModelSpec:
    """Return the model's dimensions: the row's own, or those of a known model. Raises Unusable."""
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
    shape = DecoderSizes(**sizes, **experts)
    params_b = row.measures.get("params_b")
    if not params_b:
        return shape.spec()
    candidates = shape.spec(), replace(shape, is_gated=False).spec()
    return min(candidates, key=lambda model: size_error(model, params_b))


def _bare(model: ModelSpec) -> ModelSpec:
    """Return the model with what the cost model reads alone, so that rows which agree in it count as one model."""
    layers = tuple(LayerSpec(_bare_attention(each.attention), _bare_ffn(each.feed_forward)) for each in model.layers)
    stack = StackSpec("decoder", model.hidden_size, EmbeddingSpec(model.vocab_size, model.hidden_size), layers)
    return ModelSpec("", (stack,), 0, HeadSpec())


def _bare_attention(spec: AttentionSpec) -> AttentionSpec:
    return AttentionSpec(spec.num_heads, spec.num_kv_heads, spec.head_dim, has_gate=spec.has_gate)


def _bare_ffn(spec: FeedForward | None) -> FeedForward | None:
    if isinstance(spec, ExpertsSpec):
        shared = None if spec.shared is None else _bare_network(spec.shared)
        return ExpertsSpec(spec.count, spec.per_token, _bare_network(spec.expert), shared)
    return None if spec is None else _bare_network(spec)


def _bare_network(spec: NetworkSpec) -> NetworkSpec:
    return NetworkSpec(spec.size, is_gated=spec.is_gated)


def size_error(model: ModelSpec, params_b: float) -> float:
    """Return the relative distance of the model's size from `params_b` billions, with a tied or untied output layer."""
    untied = matrix_params(model)
    tied = untied - model.vocab_size * model.hidden_size
    return min(abs(size / 1e9 / params_b - 1) for size in (untied, tied))


@dataclass(frozen=True, slots=True)
class Setup:
    """Compilation and batch of the row's model."""

    row: PublishedRow
    shape: ModelSpec
    part: Instance
    work: StepWork
    batch: int
    is_continuous: bool
    max_len: int

    @classmethod
    def of(cls, row: PublishedRow) -> Setup:
        if "tp" not in row.counts:
            raise Unusable("the tensor-parallel degree is not stated")
        shape = shape_of(row)
        batch, count = row.counts.get("batch_size", 1), row.counts
        if row.sdk < SPREAD_SDK and shape.num_kv_heads < min(row.counts["tp"], shape.num_heads):
            raise Unusable(
                f"SDK 2.{row.sdk} spread grouped queries over cores as no later release does, 3 times slower"
            )
        software = row.label("framework")
        serves = any(name in software for name in ("optimum", "tgi", "vllm"))
        is_continuous = serves and batch > 1 and row.sdk >= CONTINUOUS_SDK
        max_len = count.get("max_seq_len", 0) or count.get("input_len", 0) + count.get("output_len", 0)
        if not max_len:
            raise Unusable("no length is stated")
        is_tnx_other = _is_tnx(row) and "llama" not in row.label("model")
        runtime = Runtime(row.texts["weight_dtype"] or "bf16", is_continuous, row.sdk, is_tnx_other=is_tnx_other)
        part = instance(row.texts["instance"]).with_lnc(row.lnc)
        return cls(row, shape, part, StepWork(shape, part, row.counts["tp"], runtime), batch, is_continuous, max_len)

    @property
    def padding(self) -> Stack | None:
        """The stack whose rules of padding hold; None: a bucket for each power of two."""
        return padding_of(self.row, self.batch)

    def prompt_length(self, prompt: int) -> int:
        """Return the positions that a prompt is padded to."""
        stack = self.padding
        return bucket(prompt) if stack is None else stack.prompt_bucket(min(prompt, self.max_len), self.max_len)

    def step_length(self, is_loaded: bool = False) -> int:
        """Return the positions read of each slot by a decode step: the compiled ones, or the mean over its buckets.

        `is_loaded`: other requests are at every stage, so that the bucket is that of the longest context.
        """
        prompt, output = (self.row.counts.get(name, 0) for name in ("input_len", "output_len"))
        stack = self.padding
        longest = bucket(self.max_len) if stack is None else self.max_len
        if not output or (stack is not None and stack.steps_read == "model length"):
            return longest
        if is_loaded or self.row.label("tpot_stat").startswith("p50, excl"):
            tokens = prompt + (output if is_loaded else output // 2 + 1)
            return smallest(powers_of_two(longest), min(tokens, longest))
        return mean_bucket(prompt, output, longest)

    def group(self, kind: str) -> str:
        """Return the group of errors, such as decode_dense_inf2, decode_trn1, decode_moe_inf2."""
        part = self.row.texts["instance"].split(".")[0].removesuffix("n")
        arch = "moe" if self.shape.experts else "dense"
        return f"{kind}_{part}" if part == "trn1" and arch == "dense" else f"{kind}_{arch}_{part}"

    def prompts(self) -> int:
        """Return the number of prompts that a first token waits for. Raises Unusable if it is not known."""
        arrival = self.row.label("arrival")
        if not arrival and self.batch > 1:
            raise Unusable(f"whether the {self.batch} prompts of a batch came together is not stated")
        return self.batch if arrival == STATIC else 1

    def observation(self, phase: Phase, milliseconds: float, work: Work, positions: int) -> Observation:
        batch = self.batch if phase == "decode" else self.prompts()
        source, tp = self.row.texts["source_group"], self.work.core.tp
        width, has_experts = self.work.weight_bytes, self.shape.experts is not None
        billions = matrix_billions(self.shape)
        return Observation(
            row_id=self.row.row_id,
            model=self.row.texts["model"],
            source=source,
            sdk=self.row.sdk,
            shape=self.shape,
            group=self.group(phase),
            setup=(phase, source, self.shape, tp, self.batch, self.row.sdk),
            point=Point(phase, self.part.chip.name, billions, tp, batch, positions, width, has_experts),
            seconds=milliseconds * MS,
            work=work,
        )


def _is_tnx(row: PublishedRow) -> bool:
    """Return whether a row is of transformers-neuronx, alone or under optimum-neuron before NxD Inference.

    Rows before 2.18 are left out: no prompt alone was published for them.
    """
    software = row.label("framework")
    is_tnx = "transformers" in software or ("optimum" in software and row.sdk < SINGLE_BUCKET_SDK)
    return is_tnx and row.sdk >= SPREAD_SDK


def bucket(tokens: int) -> int:
    """Return the power of two, at least 128, that holds `tokens`."""
    return max(SMALLEST_BUCKET, 1 << (tokens - 1).bit_length())


def mean_bucket(prompt: int, output: int, longest: int) -> int:
    """Return the mean automatic bucket over the generated tokens, at most `longest`."""
    total, done, buckets = 0, 0, powers_of_two(longest)
    while done < output:
        size = smallest(buckets, min(prompt + done + 1, longest))
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
    if row.samples_on_host:
        raise Unusable("tokens were sampled on the host")
    setup, stat, output = Setup.of(row), row.label("tpot_stat"), row.counts.get("output_len", 0)
    size = setup.step_length()
    work = setup.work.decode(setup.batch, size)
    if "includes prefill" in stat and output:
        work = _sum(work, _scaled(_whole_prefill(setup, row.counts.get("input_len", 0)), 1 / output))
    elif "includes ttft" in stat and output:
        measured -= row.measures.get("ttft_ms", 0.0) / output
        if measured <= 0:
            raise Unusable("ttft_ms leaves no time for the other tokens")
    return setup.observation("decode", measured, work, size)


def _prefill(row: PublishedRow) -> Observation:
    if not row.label("use_prefill_fit").startswith("yes"):
        raise Unusable(f"use_prefill_fit is {row.label('use_prefill_fit')!r}")
    measured = _check_usable(row, "use_prefill_fit", "ttft_ms")
    if "coarse" in row.label("use_prefill_fit") and measured < COARSE_MS:
        raise Unusable(f"{measured:g} ms rounded to 0.1 s")
    setup = Setup.of(row)
    prompt = row.counts.get("input_len", 0)
    if not prompt:
        raise Unusable("no input_len")
    return setup.observation("prefill", measured, _whole_prefill(setup, prompt), setup.prompt_length(prompt))


def _whole_prefill(setup: Setup, prompt: int) -> Work:
    """Return the work before a first token: all prompts of a static batch, else its own prompt.

    With continuous batching prompts are encoded one by one. A static batch is one call for all of its prompts.
    """
    prompts, length = setup.prompts(), setup.prompt_length(prompt)
    calls = 0.0 if any(words in setup.row.label("ttft_stat") for words in DEVICE_TIMES) else 1.0
    if not setup.is_continuous:
        return setup.work.prefill(length, prompts) | {"prefill_call": calls}
    return _scaled(setup.work.prefill(length), prompts) | {"prefill_call": calls}  # the host's part once for the batch


def _scaled(work: Work, factor: float) -> Work:
    return {name: amount * factor for name, amount in work.items()}


def _sum(one: Work, other: Work) -> Work:
    return dict(Counter(one) + Counter(other))
