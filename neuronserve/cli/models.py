"""`neuronserve models`: supported models; for one checkpoint, whether it is supported and where it fits.

Reads configuration, tensor headers and the chat template, but no weights, and loads no kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.padding import Padding

from neuronserve.server.checkpoint.artifact import Artifact
from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.compressed_tensors import StoredQuantization, read_stored_quantization
from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.checkpoint.json_file import refusals_of
from neuronserve.server.checkpoint.manifest import is_artifact
from neuronserve.server.checkpoint.model_config import model_spec_of, read_model_config, read_model_spec
from neuronserve.server.config.formats import Quantization, RequestedFormats, WeightFormats
from neuronserve.server.device.catalog import Instance, instance, instances
from neuronserve.server.errors import DeviceError, DeviceMemoryError, StartError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.families import ENCODER_DECODERS, ENCODERS, GENERATORS
from neuronserve.server.models.families.text_part import TEXT_PARTS
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import linear_modules, num_params
from neuronserve.server.placement.fit import alternatives, budget_bytes, with_types_of
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits, encoder_bytes
from neuronserve.server.text.chat_template import load_chat_template
from neuronserve.server.text.parsers.call_formats import CALLS
from neuronserve.server.text.parsers.formats import REASONING, parsers_for

LIMITS = StepLimits(512, 64, 1)  # defaults of `serve`
BLOCK_SIZE = 32
UTILIZATION = 0.92
TEXT_LENGTH = 512  # tokens of an encoder's pass, unless the model's limit is lower


@dataclass(frozen=True, slots=True)
class SmallestFit:
    """The smallest instance and degree that hold a model, with the bytes of each core for one longest sequence."""

    device: str
    tensor_parallel_size: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Served:
    """Facts of a supported checkpoint."""

    spec: ModelSpec
    weights: str
    fit: SmallestFit | None  # None: no instance of the catalogue holds it
    tools: str
    reasoning: str

    @property
    def is_encoder(self) -> bool:
        """Whether the model makes vectors instead of text."""
        return not decoder_graph(self.spec).has_head

    def __str__(self) -> str:
        kind = "an encoder, by `serve` and `embed`" if self.is_encoder else f"tools: {self.tools}"
        where = "fits on no instance of the catalogue"
        if self.fit is not None:
            where = f"{self.fit.num_bytes / GIB:.1f} GiB on {self.fit.device} TP{self.fit.tensor_parallel_size}"
        parts = [f"yes; {where}", kind]
        if not self.is_encoder:
            parts.append(f"reasoning: {self.reasoning}")
        size = f"{num_params(self.spec) / 1e6:,.1f}M parameters, weights {self.weights}"
        return "; ".join((*parts, f"{self.spec.architecture}, {size}, context {self.spec.max_position:,}"))


def served(model: str, device: str, gguf_cache: Path) -> Served:
    """Read the facts of a directory or GGUF file.

    Raises CheckpointError or SettingsError with the reason if it cannot be loaded, DeviceError for an unknown
    instance.
    """
    part = instance(device)
    directory = resolve_model(model, None, gguf_cache)
    spec, formats, weights = _weights(directory, part)
    tools, reasoning = parsers_for(load_chat_template(directory))
    has_head = decoder_graph(spec).has_head
    fit = _smallest_fit(spec, part, formats) if has_head else _smallest_encoder_fit(spec, part, formats)
    return Served(spec, weights, fit, tools, reasoning)


def _weights(directory: Path, part: Instance) -> tuple[ModelSpec, WeightFormats, str]:
    """Return the model, the formats of its weights on the accelerator, and the format in its files."""
    if is_artifact(directory):
        spec = read_model_spec(directory)
        formats = Artifact.open(directory, spec).formats
        return spec, formats, f"{formats.quantization or 'bfloat16'}, compiled"
    file = directory / "config.json"
    config = read_model_config(file)
    with refusals_of(file):
        spec = model_spec_of(config)
        stored = read_stored_quantization(config, spec)
    checkpoint = Checkpoint.open(directory, spec, stored)
    if isinstance(stored, StoredQuantization):
        return spec, WeightFormats("bfloat16", stored.quantization), stored.quantization
    formats = _as_stored(checkpoint, spec, part)
    return spec, formats, formats.quantization or "as --dtype"


def _as_stored(checkpoint: Checkpoint, spec: ModelSpec, part: Instance) -> WeightFormats:
    """Return each module's stored format, as far as the accelerator supports it, as the engine chooses per matrix."""
    held = {module: checkpoint.held_by(f"{module}.weight") for module in linear_modules(spec)}
    if spec.is_tied:
        head = decoder_graph(spec).head
        held |= dict.fromkeys(head.modules, checkpoint.held_by(head.parts[0].weight))
    if not with_types_of(part, RequestedFormats("bfloat16")).may_microscale:
        instead: dict[Quantization | None, Quantization | None] = {"mxfp4": "int8-groups", "mxfp8": None}
        held = {module: instead.get(each, each) for module, each in held.items()}
    found = Counter(each for each in held.values() if each is not None)
    if not found:
        return WeightFormats("bfloat16")
    main = max(found, key=lambda each: (each != "int8-groups", found[each]))
    plain = tuple(module for module, each in held.items() if each is None)
    wide = frozenset(module for module, each in held.items() if each not in (None, main))
    return WeightFormats("bfloat16", main, plain, wide_modules=wide)


def _smallest_fit(spec: ModelSpec, part: Instance, formats: WeightFormats) -> SmallestFit | None:
    shape = ServingShape(
        "bfloat16",
        spec.max_position,
        BLOCK_SIZE,
        LIMITS,
        formats.quantization,
        formats.modules_to_not_convert,
        wide_modules=formats.wide_modules,
        from_values=formats.from_values,
    )
    fitting = [(part, tp) for tp in part.allowed_tp if _fits(spec, part, tp, shape)]
    device, tp = next(iter((*fitting, *alternatives(spec, shape, UTILIZATION))), (None, 0))
    if device is None:
        return None
    footprint = Footprint.of(spec, tp, shape, device.chip.lnc)
    return SmallestFit(device.name, tp, sum(footprint.with_kv(footprint.min_blocks).values()))


def _fits(spec: ModelSpec, part: Instance, tp: int, shape: ServingShape) -> bool:
    return Footprint.of(spec, tp, shape, part.chip.lnc).fits(budget_bytes(part, UTILIZATION))


def _smallest_encoder_fit(spec: ModelSpec, part: Instance, formats: WeightFormats) -> SmallestFit | None:
    texts = 1, min(TEXT_LENGTH, spec.max_position)
    for device in (part, *instances()):
        for tp in device.allowed_tp:
            needed = encoder_bytes(spec, tp, formats, texts, device.chip.lnc)
            if needed <= budget_bytes(device, UTILIZATION):
                return SmallestFit(device.name, tp, needed)
    return None


def run_models(model: str | None, device: str, gguf_cache: Path) -> int:
    """Print the verdict on one model, or the list of supported kinds. Returns the exit code: 1 for "no"."""
    console = Console(highlight=False)
    if model is None:
        for title, names in _lists().items():
            console.print(f"{title}:", style="bold")
            console.print(Padding(", ".join(names), (0, 0, 1, 2)))
        return 0
    try:
        console.print(str(served(model, device, gguf_cache)), soft_wrap=True)
    except (DeviceError, DeviceMemoryError):
        raise
    except StartError as error:
        console.print(f"no; {error}", soft_wrap=True)
        return 1
    return 0


def _lists() -> dict[str, Iterable[str]]:
    """Supported architectures, weight formats and parsers, by heading."""
    return {
        "generate text (architectures of config.json; also as ...Model and ...ForSequenceClassification)": GENERATORS,
        "the text model of these multimodal architectures; pictures are refused": TEXT_PARTS,
        "turn texts or sound into text": ENCODER_DECODERS,
        "encode texts (with the endings Model, ForMaskedLM and ForSequenceClassification)": ENCODERS,
        "weights (--quantization; files of the same, GPTQ, AWQ, packed compressed-tensors and GGUF are read)": (
            "none",
            *get_args(Quantization),
        ),
        "tool calls (--tool-call-parser; auto follows the chat template)": CALLS,
        "reasoning (--reasoning-parser; auto follows the chat template)": REASONING,
    }
