"""Whole answers of an encoder with a decoder (T5): one pass over the prompt, then steps of all beams.

No fit sees these rows: they are predicted from terms that other rows determined. The models are described by their
sizes here alone, since nothing serves or plans them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...server.cost.evidence import Point
from ...server.cost.shape import matrix_billions
from ...server.cost.work import Runtime, StepWork, Work
from ...server.device.catalog import instance
from ...server.errors import DeviceError
from ...server.models.sizes import DecoderSizes
from .encoder_passes import TENSOR_PARALLEL
from .encoder_rows import EncoderMeasurement
from .observation import MS, Observation, Unusable

# Layers of the encoder, and of the decoder without its cross attention: config.json of google-t5 and google/flan-t5.
SIZES = {
    "t5-base": DecoderSizes(12, 768, 3072, 12, 12, 64, 32128, is_gated=False),
    "t5-large": DecoderSizes(24, 1024, 4096, 16, 16, 64, 32128, is_gated=False),
    "t5-3b": DecoderSizes(24, 1024, 16384, 32, 32, 128, 32128, is_gated=False),
    "t5-11b": DecoderSizes(24, 1024, 65536, 128, 128, 128, 32128, is_gated=False),
    "flan-t5-base": DecoderSizes(12, 768, 2048, 12, 12, 64, 32128),
    "flan-t5-large": DecoderSizes(24, 1024, 2816, 16, 16, 64, 32128),
    "flan-t5-xl": DecoderSizes(24, 2048, 5120, 32, 32, 64, 32128),
    "flan-t5-xxl": DecoderSizes(24, 4096, 10240, 64, 64, 64, 32128),
}
# Beams of the script that the rows name (t5-inference-tutorial.ipynb of the SDK), which divides the time of an answer
# by its tokens. The page's note, "counts both input and output tokens", contradicts the script.
BEAMS = 4
UNMEASURED = (  # reasons beyond those of a decode step why its band says too little of an answer
    "no step with cross attention is among the measurements",
    "what the host's beam search adds to a step is not modelled",
)
SUBLAYERS = 3 / 2  # self attention, cross attention and network, where other decoders have two


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention of a decoder's layers to the `positions` that the encoder made, on one core."""

    steps: StepWork
    positions: int

    @property
    def projection(self) -> float:
        """Weights of two of the four projections of all layers: K and V, or Q and the output."""
        model, core = self.steps.model, self.steps.core
        return 2.0 * model.num_layers * model.hidden_size * core.query_heads * model.head_dim

    def step(self, beams: int, bucket: int) -> Work:
        """Return the work of a decode step of `beams` slots: Q and the output for each token, K and V are cached."""
        steps, work = self.steps, self.steps.decode(beams, bucket)
        each = ("layer_launch", "collectives", "ring_collectives", "slot_layer")
        return work | {
            **{name: SUBLAYERS * work[name] for name in each},
            "weights": work["weights"] + self.projection * steps.weight_bytes * steps.byte_s,
            "decode_matmul": work["decode_matmul"] + 2 * beams * self.projection * steps.flop_s,
            "kv": work["kv"] + steps.kv_bytes(beams * self.positions) * steps.byte_s,
        }

    def encode(self) -> Work:
        """Return the work of the encoder's pass over one prompt, with K and V of every layer of the decoder."""
        steps, work = self.steps, self.steps.encode(self.positions, 1, values=0)
        return work | {
            "encode_matmul": work["encode_matmul"] + 2 * self.positions * self.projection * steps.flop_s,
            "encode_weights": work["encode_weights"] + self.projection * steps.weight_bytes * steps.byte_s,
        }


def answer_work(steps: StepWork, prompt: int, output: int) -> Work:
    """Return the work of an answer of `output` tokens, each a step of all beams, to a prompt padded to `prompt`."""
    cross = CrossAttention(steps, prompt)
    step, encode = cross.step(BEAMS, prompt), cross.encode()
    return {name: output * step.get(name, 0.0) + encode.get(name, 0.0) for name in {**step, **encode}}


def observe_answers(rows: list[EncoderMeasurement]) -> tuple[list[Observation], list[tuple[str, str]]]:
    """Return the answers of tensor-parallel rows, and row and reason of those that cannot be compared."""
    found, skipped = [], []
    for row in rows:
        try:
            if row.texts["run_mode"] == TENSOR_PARALLEL:
                found.append(_observation(row))
        except (Unusable, DeviceError) as error:
            skipped.append((row.row_id, f"answer: {error}"))
    return found, skipped


def _observation(row: EncoderMeasurement) -> Observation:
    part, tp, output = instance(row.part), row.count("tp"), row.count("output_len")
    sizes = SIZES.get(row.texts["model"].lower().rpartition("/")[2])
    if sizes is None:
        raise Unusable(f"the sizes of {row.texts['model']} are not known")
    shape = sizes.spec()
    steps = StepWork(shape, part, tp, Runtime(is_continuous=False, sdk=row.sdk))
    length = row.count("input_len")
    return Observation(
        row_id=row.row_id,
        model=row.texts["model"],
        source=row.source,
        sdk=row.sdk,
        shape=shape,
        group=f"encoder_decoder_{row.part.split('.')[0]}",
        setup=("encode", row.source, row.sdk, shape, tp, length, output),
        point=Point("decode", part.chip.name, matrix_billions(shape), tp, BEAMS, length, steps.weight_bytes, False),
        seconds=output * row.number("latency_p50_ms") * MS,
        work=answer_work(steps, length, output),
    )
