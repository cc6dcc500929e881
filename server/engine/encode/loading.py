"""Loading of an encoder from a model's directory: checks first, then packs, compiles and reserves.

Any supported decoder can be loaded as an encoder: its layers, without the output layer, over all tokens of a text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...checkpoint.model_config import read_model_config
from ...checkpoint.sentence import SentenceModel, read_sentence_model
from ...config import CacheConfig, EncodeConfig, PoolingLimits
from ...config.formats import Isa, WeightFormats
from ...device.attention_layout import CHUNK
from ...device.catalog import instance, use_catalog
from ...device.core import NeuronCore
from ...errors import DeviceError, SettingsError
from ...host.cpu_watch import CpuWatch
from ...host.memory import available_bytes, require_host_memory
from ...kernels import executor
from ...kernels.checks import use_checks
from ...kernels.compilation import compile_kernels
from ...kernels.isa.cache import use_cache
from ...kernels.workers import WorkerPool
from ...models.heads import Head, Normalize, classification_head
from ...placement.cache_layout import kv_slot_sizes
from ...placement.fit import require_encoder_fit
from ...placement.footprint import ServingShape, StepLimits
from ...placement.host_footprint import HostFootprint
from ...placement.kv_groups import KVPlace
from ...placement.runtime_memory import Line
from ...placement.shard import ShardSpec
from ...text.encoder_tokenizer import EncoderTokenizer, stated_length
from ...text.tokenizer import load_tokenizer
from ...types import TokenizedText
from ..attention_work import AttentionWork
from ..buffers import ActivationBuffers, ConstantTables, KVPool
from ..load.model_source import StatesSource, open_states
from ..load.weights import OnProgress, WeightLoader
from ..lowering import build_program
from ..operands import Placement
from ..step_inputs import StepInputs
from .beside import WEAK
from .distances import with_distances
from .encoder import Encoder, StateRunner
from .head import load_head, without_scaling

BLOCK_SIZE = CHUNK  # tokens of a text whose keys are contiguous


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder, the tokenizer of its texts, and the prompts in its files."""

    encoder: Encoder
    tokenizer: EncoderTokenizer
    placement: Placement
    formats: WeightFormats
    sentence: SentenceModel
    core_lines: tuple[Line, ...]  # memory account of each core of the accelerator
    limits: PoolingLimits
    notes: tuple[str, ...]  # each worth a line to the user


def load_encoder(config: EncodeConfig, on_progress: OnProgress, isa: Isa | None = None) -> LoadedEncoder:
    """Load the model of `config`, with progress lines; kernels are the host's best, or those of `isa`.

    Raises CheckpointError, SettingsError, DeviceError, DeviceMemoryError or HostMemoryError.
    """
    return EncoderLoading(config, on_progress, isa).run()


class EncoderLoading:
    """The steps of one start: cheap checks before long work."""

    def __init__(self, config: EncodeConfig, on_progress: OnProgress, isa: Isa | None = None) -> None:
        self._config, self._on_progress, self._isa = config, on_progress, isa
        self._directory = Path(config.model_path)
        use_catalog(config.catalog)
        self._model: StatesSource = open_states(
            self._directory, config.requested_formats, config.tensor_parallel_size, config.cpu_threads
        )
        self.spec = self._model.spec
        if self.spec.state_mixer is not None:
            raise DeviceError(
                f"{self.spec.architecture} keeps a state of each text: only its class that generates is served"
            )
        self._sentence = read_sentence_model(self._directory)
        self.max_length = self._longest()
        self._head, self._notes = self._choose_head()
        formats, tokens = self._model.formats, max(config.max_num_batched_tokens, self.max_length)
        self._limits = StepLimits(tokens, 0, config.cpu_threads)
        self._shape = ServingShape(
            config.dtype,
            self.max_length,
            BLOCK_SIZE,
            self._limits,
            formats.quantization,
            formats.modules_to_not_convert,
        )
        self._shard = ShardSpec.of(self.spec, config.tensor_parallel_size)
        texts = max(1, tokens // self.max_length), self.max_length
        part = instance(config.device), config.device_memory_utilization
        self.core_lines = require_encoder_fit(self.spec, part, self._shard.tp, formats, texts)
        self._num_blocks = tokens // BLOCK_SIZE + config.max_num_seqs
        self._require_host()

    def run(self) -> LoadedEncoder:
        if self._config.kernel_checks:
            use_checks()
        use_cache(self._config.kernel_cache_dir, report=self._on_progress)
        tokenizer = load_tokenizer(self._directory)
        sentence = self._sentence
        texts = EncoderTokenizer(tokenizer, self.max_length, sentence.is_lower_case, sentence.frame)
        cores = [NeuronCore(core) for core in range(self._shard.tp)]
        placement = self._place(cores)
        checkpoint = self._model.checkpoint
        head = load_head(self._head, self._directory, checkpoint, self.spec.state_size)
        runner = self._runner(placement)
        runner.run([TokenizedText((0,))])
        limits = PoolingLimits(self._config.max_num_seqs, self._limits.num_tokens, self.max_length)
        return LoadedEncoder(
            encoder=Encoder(runner, head, limits, self.spec.vocab_size),
            tokenizer=texts,
            placement=placement,
            formats=self._model.formats,
            sentence=self._sentence,
            core_lines=self.core_lines,
            limits=limits,
            notes=self._notes,
        )

    def _longest(self) -> int:
        """Return the most tokens of a text: configured, or stated by the files, within the model's positions."""
        stated, most = self._sentence.max_seq_length or stated_length(self._directory), self.spec.longest
        configured = self._config.max_model_len
        if configured is not None and not 2 <= configured <= most:
            raise SettingsError(f"max_model_len is {configured}: this model takes 2 to {most} tokens")
        return configured or min(stated or most, most)

    def _choose_head(self) -> tuple[Head, tuple[str, ...]]:
        """Return the head of the architecture, of modules.json or of the settings, and notes about it."""
        pooling, normalize = self._config.pooling, self._config.normalize
        found = classification_head(self.spec.architecture, read_model_config(self._directory / "config.json"))
        if found is not None:
            if pooling is not None or normalize is not None:
                raise SettingsError(f"pooling and normalize are for embeddings: {self.spec.architecture} classifies")
            return found, ()
        head, notes = self._sentence.head, list[str]()
        if head is None:
            last = not self.spec.is_encoder and pooling == "lasttoken"
            head = Head(("mean",), (Normalize(),))
            if pooling is None:
                notes.append("no modules.json describes the pooling: the mean of the states is taken, normalized")
            if not self.spec.is_encoder and not last:
                notes.append(f"{self.spec.architecture} was {WEAK}")
        if pooling is not None:
            head = replace(head, pooling=(pooling,))
        if normalize is not None:
            head = without_scaling(head)
            head = replace(head, steps=(*head.steps, Normalize())) if normalize else head
        return head, tuple(notes)

    def _require_host(self) -> None:
        """Raise HostMemoryError when the host is too small. All layers share one layer's memory for keys and values."""
        whole = HostFootprint.of(self.spec, self._shard, self._shape)
        self.host_bytes = replace(whole, kv_block=whole.kv_layer).total(self._num_blocks)
        model = f"{self._directory} with tensor_parallel_size {self._shard.tp}"
        available, share = available_bytes(), self._config.data_parallel.host_memory_bytes
        require_host_memory(self.host_bytes, model, available if share is None else min(available, share))

    def _place(self, cores: list[NeuronCore]) -> Placement:
        model, spec, shard = self._model, self.spec, self._shard
        weights = WeightLoader(model.source, spec, shard, cores, model.formats).load(self._on_progress)
        cache = CacheConfig(self._num_blocks, BLOCK_SIZE, enable_prefix_caching=False)
        kv_dtype = self._shape.kv_dtype
        sizes = kv_slot_sizes(spec, shard, kv_dtype, BLOCK_SIZE)
        placement = Placement(
            spec=spec,
            shard=shard,
            cores=cores,
            weights=weights,
            tables=ConstantTables(cores, spec, shard, self.max_length),
            buffers=ActivationBuffers(cores, spec, shard, self._shape),
            kv=KVPool.allocate(cores, (KVPlace(0, 0),) * spec.num_layers, cache.num_blocks, sizes),
            cache=cache,
            dtype=self._config.dtype,
            kv_dtype=kv_dtype,
            isa=self._isa,
        )
        return with_distances(placement, self.max_length, model.checkpoint)

    def _runner(self, placement: Placement) -> StateRunner:
        config, limits, buffers = self._config, self._limits, placement.buffers
        program = build_program(placement)
        seconds = compile_kernels((*program.kernels, *executor.FUNCTIONS), self._on_progress, limits.num_workers)
        self._on_progress(f"kernels ready in {seconds:.1f} s")
        pool = WorkerPool(limits.num_workers, watch=CpuWatch(limits.num_workers))
        pool.bind(config.cpus)
        work = AttentionWork(buffers.sizes.attention.tile_tokens, 0, limits.num_workers)
        inputs = StepInputs(limits.num_tokens, config.max_num_seqs, self.max_length, placement.cache, work)
        hidden = buffers.hidden, buffers.widths.hidden, self.spec.state_size
        return StateRunner(pool, program, inputs, BLOCK_SIZE, hidden)
