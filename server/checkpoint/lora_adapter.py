"""A LoRA adapter as PEFT saves it, adapter_config.json and adapter_model.safetensors, checked against its model.

Names and meanings as in github.com/huggingface/peft (LoraConfig). An option that would change the result and is not
computed is refused by name. Only simple patterns of the configuration are run: a regular expression may never end.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from ..errors import CheckpointError
from ..host.regular_file import open_regular
from ..models.families.text_part import name_in_text
from ..models.linear import Linear
from ..typed_json import shown
from .json_file import read_json
from .safetensors_file import SafetensorsFile

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
PREFIX = "base_model.model."
SIDES = ("lora_A", "lora_B")
READABLE = ("BF16", "F16", "F32")
_HASHED_BYTES = 1 << 22

Rank = Annotated[int, Meta(ge=1, le=1 << 20)]
Alpha = Annotated[float, Meta(gt=-1e6, lt=1e6)]


class AdapterConfig(msgspec.Struct, frozen=True):
    """Keys of adapter_config.json that are read, with PEFT's defaults."""

    peft_type: str
    r: Rank
    lora_alpha: Alpha
    target_modules: list[str] | str | None = None
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Alpha] | None = None
    layers_to_transform: list[int] | int | None = None
    exclude_modules: list[str] | str | None = None
    # Options that are refused unless they are off.
    bias: str = "none"
    lora_bias: bool = False
    use_dora: bool = False
    use_qalora: bool = False
    fan_in_fan_out: bool = False
    modules_to_save: list[str] | None = None
    trainable_token_indices: Any = None
    target_parameters: list[str] | None = None
    layer_replication: Any = None
    alora_invocation_tokens: Any = None
    megatron_config: Any = None
    init_lora_weights: bool | str | None = True


# Keys that are refused when set, with the reason.
REFUSED: Mapping[str, str] = {
    "lora_bias": "biases of adapters are not computed",
    "use_dora": "magnitudes (DoRA) are not computed",
    "use_qalora": "QALoRA is not computed",
    "modules_to_save": "only low-rank changes are computed, not whole modules or embeddings",
    "trainable_token_indices": "trained embeddings are not computed",
    "target_parameters": "adapters of experts are not computed",
    "layer_replication": "layers cannot be repeated",
    "alora_invocation_tokens": "adapters that begin inside of a prompt (aLoRA) are not computed",
    "megatron_config": "Megatron's layers are not known",
}
# Initializations that leave the base model as it is; others move part of its weights into the adapter.
HARMLESS_INITS = ("gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class Module:
    """The adapter of one module: output += scale * B (A input)."""

    rank: int
    scale: float
    a: str  # tensor [rank, inputs]
    b: str  # tensor [outputs, rank]


class LoraAdapter:
    """Files of an adapter, checked against the layers that may be adapted. Tensors are read on request."""

    def __init__(self, directory: Path, linears: Iterable[Linear], max_rank: int) -> None:
        """Open the adapter of `linears`, the layers that may be adapted. Raises CheckpointError."""
        self._path = directory / CONFIG
        self._config = read_json(self._path, MAX_CONFIG_BYTES, AdapterConfig)
        linears = list(linears)
        self._require_computable()
        if self._config.fan_in_fan_out and not any(part.is_transposed for each in linears for part in each.parts):
            self._refuse("fan_in_fan_out", True, "the weights of this model are stored [outputs, inputs]")
        if not (directory / WEIGHTS).exists() and (directory / "adapter_model.bin").exists():
            raise CheckpointError(str(directory / "adapter_model.bin"), "is a pickle; save it as safetensors")
        self._file = SafetensorsFile(directory / WEIGHTS)
        self._widths = module_widths(linears)
        self._max_rank = max_rank
        self.modules = self._modules()
        self.rank = max(module.rank for module in self.modules.values())
        self.digest = self._digest()

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """Read a tensor as float32. Raises CheckpointError for a value that is not finite."""
        values = self._file.array(name).astype(np.float32)
        if not np.isfinite(values).all():
            raise CheckpointError(str(self._file.path), "has values that are not finite", name)
        return values

    def _require_computable(self) -> None:
        config = self._config
        if config.peft_type != "LORA":
            self._refuse("peft_type", config.peft_type, "only LORA is computed")
        if config.bias != "none":
            self._refuse("bias", config.bias, "trained biases are not computed")
        for key, why in REFUSED.items():
            if value := getattr(config, key):
                self._refuse(key, value, why)
        init = config.init_lora_weights
        if isinstance(init, str) and init not in HARMLESS_INITS:
            self._refuse("init_lora_weights", init, "it changes the base model's weights, which are not in the adapter")

    def _refuse(self, key: str, value: Any, why: str) -> None:
        raise CheckpointError(str(self._path), f"{key} is {shown(value)}: {why}")

    def _modules(self) -> dict[str, Module]:
        """Return the adapted modules by the checkpoint's names, each with both of its tensors."""
        found = self._found()
        for name in self._wanted():
            if name not in found:
                tensor = f"{PREFIX}{name}.lora_A.weight"
                raise CheckpointError(str(self._file.path), "is missing, though target_modules has the module", tensor)
        return {name: self._module(name, tensors) for name, tensors in found.items()}

    def _found(self) -> dict[str, dict[str, str]]:
        """Return the tensors of A and B by module."""
        found: dict[str, dict[str, str]] = {}
        for tensor in self._file.names:
            module, side = _split(tensor)
            if side not in SIDES:
                raise CheckpointError(str(self._file.path), f"{_kind_of(tensor)}: not computed", tensor)
            if module not in self._widths:
                known = ", ".join(sorted({name.rpartition(".")[2] for name in self._widths}))
                reason = f"{shown(module)} is no module that can be adapted; a layer has {known}"
                raise CheckpointError(str(self._file.path), reason, tensor)
            found.setdefault(module, {})[side] = tensor
        if not found:
            raise CheckpointError(str(self._file.path), "has no tensors")
        return found

    def _wanted(self) -> Iterator[str]:
        """Yield the modules that the configuration names; none where it names them by an expression."""
        config, targets, layers = self._config, self._config.target_modules, self._config.layers_to_transform
        if config.exclude_modules or (isinstance(targets, str) and targets != "all-linear"):
            return
        chosen = None if layers is None else {layers} if isinstance(layers, int) else set(layers)
        for name in self._widths:
            is_named = targets == "all-linear" or any(_ends_with(name, target) for target in targets or ())
            if is_named and (chosen is None or _layer(name) in chosen):
                yield name

    def _module(self, name: str, tensors: Mapping[str, str]) -> Module:
        config, (inputs, outputs) = self._config, self._widths[name]
        rank = self._pattern(config.rank_pattern, name, config.r)
        if rank > self._max_rank:
            raise CheckpointError(str(self._path), f"{name} has rank {rank}, more than max_lora_rank {self._max_rank}")
        names = [tensors.get(side) for side in SIDES]
        for side, tensor, shape in zip(SIDES, names, ((rank, inputs), (outputs, rank)), strict=True):
            if tensor is None:
                raise CheckpointError(str(self._file.path), "is missing", f"{PREFIX}{name}.{side}.weight")
            self._check(tensor, shape)
        alpha = self._pattern(config.alpha_pattern, name, config.lora_alpha)
        scale = alpha / (math.sqrt(rank) if config.use_rslora else rank)
        return Module(rank, scale, *(tensor for tensor in names if tensor is not None))

    def _check(self, tensor: str, shape: tuple[int, int]) -> None:
        info = self._file.tensors[tensor]
        if info.shape != shape:
            raise CheckpointError(str(self._file.path), f"shape is {list(info.shape)}, expected {list(shape)}", tensor)
        if info.dtype not in READABLE:
            raise CheckpointError(str(self._file.path), f"dtype is {info.dtype}, not {', '.join(READABLE)}", tensor)

    def _pattern(self, values: Mapping[str, Any] | None, name: str, default: Any) -> Any:
        """Return the value of the first key that the module's name ends with, as in PEFT."""
        for key, value in (values or {}).items():
            if not _is_quick(key):
                self._refuse(
                    "a key of rank_pattern or alpha_pattern", key, "more than four repetitions, or unbounded ones"
                )
            try:
                if re.fullmatch(rf"(.*\.)?({key})", name):
                    return value
            except re.error as error:
                self._refuse("a key of rank_pattern or alpha_pattern", key, f"is no regular expression: {error}")
        return default

    def _digest(self) -> str:
        """SHA-256 of both files: adapters with the same files share cached prefixes."""
        digest = hashlib.sha256()
        for path in (self._path, self._file.path):
            try:
                with open_regular(path) as file:
                    digest.update(path.stat().st_size.to_bytes(8, "little"))
                    while block := file.read(_HASHED_BYTES):
                        digest.update(block)
            except OSError as error:
                raise CheckpointError(str(path), f"cannot be read: {error.strerror}") from None
        return digest.hexdigest()


def module_widths(linears: Iterable[Linear]) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of each module, of which several parts may be rows."""
    found: dict[str, tuple[int, int]] = {}
    for linear in linears:
        for part in linear.parts:
            _, outputs = found.get(part.module, (0, 0))
            last = part.row(part.outputs.units - 1) + part.outputs.unit_size
            found[part.module] = linear.inputs.size, max(outputs, last)
    return found


def _split(tensor: str) -> tuple[str, str]:
    """Return module and kind of a tensor: base_model.model.MODULE.KIND.weight."""
    module, _, kind = tensor.removesuffix(".weight").rpartition(".")
    is_known = tensor.startswith(PREFIX) and tensor.endswith(".weight")
    return name_in_text(module.removeprefix(PREFIX)), kind if is_known else ""


def _kind_of(tensor: str) -> str:
    kinds = {"lora_embedding": "adapter of an embedding", "lora_magnitude": "magnitude of DoRA", "bias": "bias"}
    known = next((kind for word, kind in kinds.items() if word in tensor), None)
    return known or ("trained embedding" if "embed" in tensor else "neither lora_A nor lora_B of a module")


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _layer(name: str) -> int | None:
    """Return the number of a module's layer."""
    return next((int(word) for word in name.split(".") if word.isdecimal()), None)


def _is_quick(pattern: str) -> bool:
    """Return whether a match takes a bounded time: at most four repetitions, and none of a group."""
    simple = re.compile(r"\.[*+]|\\d[*+]|\[0-9\][*+]")
    return len(pattern) <= 256 and len(simple.findall(pattern)) <= 4 and not set("*+?{") & set(simple.sub("", pattern))
