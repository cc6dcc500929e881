"""The host's threads and input arrays for a placed model, its compiled programs, and the runner of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...config import EngineConfig
from ...device.ledger import MemoryLedger
from ...host.cpu_watch import CpuWatch
from ...kernels import executor
from ...kernels.compilation import Compiled, compile_kernels
from ...kernels.isa.jit import Kernel
from ...kernels.sample.sample import sample
from ...kernels.workers import WorkerPool
from ...placement.footprint import ServingShape
from ..adapters import AdapterBank
from ..attention_work import AttentionWork
from ..cross.aligner import Aligner
from ..cross.loading import sound_shape
from ..encode.beside import LayerPool
from ..grammar_store import GrammarStore
from ..graph_slice import GraphSlice
from ..lowering import build_program
from ..operands import Placement
from ..pipeline.ring import Ring
from ..pipeline.rows import stream_of
from ..pipeline.runner import PipelineRunner
from ..runner import ModelRunner, Programs
from ..sampler import Sampler
from ..step_inputs import StepInputs
from .cores import local_stages
from .weights import OnProgress


@dataclass(frozen=True, slots=True)
class Placed:
    """A model in memory, and what lies beside it."""

    placement: Placement
    ledger: MemoryLedger
    bank: AdapterBank | None
    layer: LayerPool | None
    encoder: Placement | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Host threads and arrays for the programs of one model."""

    config: EngineConfig
    shape: ServingShape
    on_progress: OnProgress
    pool: WorkerPool | None = None  # of another model; None: there are new threads
    num_ids: int | None = None  # of which tokens are sampled; None = the model's

    def runner(
        self, placement: Placement, bank: AdapterBank | None, grammars: GrammarStore, ring: Ring | None
    ) -> ModelRunner:
        """Return the runner of a placed model, or of the first stage of a pipeline."""
        size, drafts = self.num_ids or placement.spec.vocab_size, self.config.speculation
        rows = placement.buffers.logits_array()
        if ring is None:
            is_read = drafts is not None and drafts.method == "mtp"  # its normed states, by the layer that drafts
            is_read |= placement.spec.stack.input.joins_normed
            part = GraphSlice(range(placement.spec.num_layers), True, "logits and states") if is_read else None
            adapted = None if bank is None else build_program(placement, bank.memory, part)
            programs = Programs(build_program(placement, part=part), adapted)
            pool, inputs = self.prepared(placement, programs.kernels, bank)
            sampler = Sampler(pool, rows, size, grammars, drafts)
            runner = ModelRunner(pool, programs, inputs, sampler, placement.cache)
            runner.around = Aligner(placement, pool, inputs, self.on_progress) if sound_shape(placement.spec) else None
            return runner
        layers = range(placement.spec.num_layers)
        programs = Programs(build_program(placement, part=GraphSlice(layers, True, "stream")))
        tail = build_program(placement, part=GraphSlice(range(0), False, "logits"))
        pool, inputs = self.prepared(placement, [*programs.kernels, *tail.kernels])
        runner = PipelineRunner(pool, programs, inputs, Sampler(pool, rows, size, grammars), placement.cache)
        runner.close_ring(ring, tail, stream_of(placement))
        return runner

    def prepared(
        self, placement: Placement, kernels: Sequence[Kernel], bank: AdapterBank | None = None
    ) -> tuple[WorkerPool, StepInputs]:
        """Compile what is missing; return the threads and the input arrays."""
        limits, tiles = self.shape.limits, placement.buffers.sizes.attention
        used: tuple[Compiled, ...] = (*kernels, sample, *executor.FUNCTIONS)
        seconds = compile_kernels(used, self.on_progress, limits.num_workers)
        self.on_progress(f"kernels ready in {seconds:.1f} s")
        engines = self.config.data_parallel.size * local_stages(self.config)
        pool = self.pool or WorkerPool(limits.num_workers, watch=CpuWatch(limits.num_workers, engines))
        pool.bind(self.config.cpus)
        work = AttentionWork(tiles.tile_tokens, tiles.num_slots, limits.num_workers)
        sizes = limits.num_tokens, limits.num_samples, self.shape.max_model_len
        return pool, StepInputs(*sizes, placement.cache, work, None if bank is None else bank.slots)
