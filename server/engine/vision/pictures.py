"""Pictures of an engine that generates: the vision encoder, and the blocks of vectors that it fills."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...checkpoint.manifest import is_artifact
from ...config import EngineConfig
from ...cost.encode_pricer import EncodePricer
from ...cost.model import CostModel
from ...cost.shape import stored_dtype
from ...cost.work import Runtime
from ...device.buckets import powers_of_two
from ...device.catalog import instance
from ...placement.footprint import ServingShape, StepLimits, vision_shape
from ...scheduler.encodings import EncodingLimits
from ...types import Encoding, Request
from ..load.loading import LoadedEngine
from ..load.weights import OnProgress
from .loading import VisionLoader
from .rows import PictureRows, Vectors, placeholders
from .tower import VisionTower

VECTOR_BYTES = 1 << 29  # of kept vectors: 64 pictures of 1,024 tokens in a model with 2,048 elements, without taps


@dataclass(frozen=True, slots=True)
class Pictures:
    """Implements neuronserve.server.engine.runner.Encoder."""

    tower: VisionTower
    vectors: Vectors
    token_id: int  # of placeholders
    room: int  # most tokens of a picture

    def refusal(self, request: Request) -> str | None:
        for item in request.media:
            found = placeholders(request.prompt_token_ids, item, self.token_id)
            reason = self.tower.refusal(item)
            if len(found) != item.num_tokens:
                reason = f"a picture has {len(found)} placeholders in the prompt: it makes {item.num_tokens} vectors"
            if item.num_tokens > self.room:
                reason = (
                    f"a picture of {item.num_tokens} vectors is computed in one step, which has room for {self.room}: "
                )
                reason += "max_num_batched_tokens less a token of each other sequence of max_num_seqs"
            if reason is not None:
                return reason
        return None

    def encode(self, encodings: Sequence[Encoding]) -> None:
        for each in encodings:
            self.vectors.put(each.blocks, self.tower.encode(each.item))


def load_pictures(config: EngineConfig, loaded: LoadedEngine, on_progress: OnProgress) -> EncodingLimits | None:
    """Load the vision encoder of a loaded model, and return the budget of its vectors.

    None where it has none, or only the text was compiled.

    Raises CheckpointError and HostMemoryError.
    """
    directory, spec, vision = Path(config.model_path), loaded.spec, loaded.spec.vision
    if vision is None or is_artifact(directory):
        return None
    text, limits = loaded.placement, StepLimits(config.max_num_batched_tokens, config.max_num_seqs, config.cpu_threads)
    formats = loaded.formats
    types = formats.quantization, formats.modules_to_not_convert
    sizes = config.dtype, loaded.info.max_model_len, config.block_size, limits
    shape = ServingShape(*sizes, *types, from_values=formats.from_values)
    loader = VisionLoader(directory, spec, text.cores[0], shape)
    width = text.buffers.widths.hidden
    tower = loader.tower(loader.place(on_progress), loaded.runner.pool, width, on_progress)
    longest, usable = shape.max_model_len, VECTOR_BYTES // (vision.num_sections * width * 4)
    vectors = Vectors(max(longest, min(usable, 2 * config.max_num_seqs * longest)), vision.num_sections * width)
    loaded.runner.inputs.pictures = PictureRows(vision, vectors, text.tables.ropes, shape.max_model_len)
    runtime = Runtime(stored_dtype(vision_shape(spec, shape).quantization, config.dtype))
    model = CostModel.of(spec.vision_encoder, instance(config.device), 1, runtime)
    steps = loaded.scheduler
    room = steps.max_chunk - steps.max_num_seqs + 1 if spec.has_whole_pictures else steps.max_model_len
    passes = EncodePricer(model, 1, powers_of_two(tower.max_patches))
    loaded.pricer.encode = lambda num_tokens: passes.run(num_tokens * vision.merge**2)
    loaded.runner.encoder = pictures = Pictures(tower, vectors, vision.token_id, room)
    return EncodingLimits(1, vectors.num_rows, 0, config.max_num_batched_tokens, pictures.refusal)
