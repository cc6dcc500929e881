"""Pictures of an engine that generates: the encoder, the vectors of requests, and the runner of steps that encode."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...checkpoint.manifest import is_artifact
from ...config import EngineConfig
from ...cost.encode_pricer import EncodePricer
from ...cost.model import CostModel
from ...cost.picture_pricer import PicturePricer
from ...cost.work import Runtime
from ...device.buckets import powers_of_two
from ...device.catalog import instance
from ...placement.footprint import ServingShape, StepLimits
from ...scheduler.pictures import PictureLimits
from ...types import MediaItem, Request, StepPlan, StepResult
from ..encode.runner import Timed
from ..load.loading import LoadedEngine
from ..load.weights import OnProgress
from ..loop import Pending
from .loading import VisionLoader
from .rows import PictureRows, Vectors, placeholders
from .tower import VisionTower

VECTOR_BYTES = 1 << 29  # of kept vectors: 64 pictures of 1,024 tokens in a model with 2,048 elements, without taps


class TimedRunner(Protocol):
    """Runner of all other steps."""

    def submit(self, plan: StepPlan) -> Pending: ...
    def time_instructions(self, is_on: bool) -> None: ...
    @property
    def timed(self) -> Timed | None: ...


@dataclass(frozen=True, slots=True)
class Pictures:
    """A loaded encoder and the vectors of pictures that requests need."""

    tower: VisionTower
    vectors: Vectors
    limits: PictureLimits
    pricer: PicturePricer

    def encode(self, item: MediaItem) -> None:
        """Encode a picture and keep its vectors."""
        self.vectors.put(item.digest, self.tower.encode(item))


def load_pictures(config: EngineConfig, loaded: LoadedEngine, on_progress: OnProgress) -> Pictures | None:
    """Load the vision encoder of a loaded model; None where it has none, or only the text was compiled.

    Raises CheckpointError and HostMemoryError.
    """
    directory, spec, vision = Path(config.model_path), loaded.spec, loaded.spec.vision
    if vision is None or is_artifact(directory):
        return None
    text, limits = loaded.placement, StepLimits(config.max_num_batched_tokens, config.max_num_seqs, config.cpu_threads)
    shape = ServingShape(config.dtype, loaded.info.max_model_len, config.block_size, limits)
    loader = VisionLoader(directory, spec, text.cores[0], shape)
    width = text.buffers.widths.hidden
    tower = loader.tower(loader.place(on_progress), loaded.runner.pool, width, on_progress)
    vectors = Vectors()
    loaded.runner.inputs.pictures = PictureRows(vision, vectors, text.tables.ropes, shape.max_model_len)
    model = CostModel.of(spec.vision_encoder, instance(config.device), 1, Runtime(config.dtype))
    pricer = PicturePricer(loaded.pricer, EncodePricer(model, 1, powers_of_two(tower.max_patches)), vision.merge**2)

    room = loaded.scheduler.max_chunk - loaded.scheduler.max_num_seqs + 1

    def check(request: Request) -> str | None:
        """Return why the pictures of a request cannot be encoded."""
        for item in request.media:
            found = placeholders(request.prompt_token_ids, item, vision.token_id)
            reason = tower.refusal(item)
            if len(found) != item.num_tokens:
                reason = f"a picture has {len(found)} placeholders in the prompt: it makes {item.num_tokens} vectors"
            if spec.has_whole_pictures and item.num_tokens > room:
                reason = f"a picture of {item.num_tokens} vectors is computed in one step, which has room for {room}: "
                reason += "max_num_batched_tokens less a token of each other sequence of max_num_seqs"
            if reason is not None:
                return reason
        return None

    vector_bytes = vision.num_sections * width * 4
    return Pictures(tower, vectors, PictureLimits(vector_bytes, VECTOR_BYTES, check), pricer)


class PictureRunner:
    """Runner of steps that encode a picture, and of all others by `runner`."""

    def __init__(self, runner: TimedRunner, pictures: Pictures) -> None:
        self._runner, self._pictures = runner, pictures

    def submit(self, plan: StepPlan) -> Pending:
        """Encode a picture at once, or submit the plan to the other runner."""
        if not plan.is_picture:
            return self._runner.submit(plan)
        begin = time.perf_counter()
        self._pictures.vectors.forget(plan.dropped)
        for item in plan.prefill[0].media:
            self._pictures.encode(item)
        result = StepResult(plan.step_id, {}, time.perf_counter() - begin)
        return lambda: result

    def time_instructions(self, is_on: bool) -> None:
        """Time the instructions of the other runner from the next step on, or stop it."""
        self._runner.time_instructions(is_on)

    @property
    def timed(self) -> Timed | None:
        """Program of the other runner that ran last and its times, as in ModelRunner."""
        return self._runner.timed
