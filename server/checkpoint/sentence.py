"""Files of sentence-transformers beside a checkpoint: pooling, small layers, normalization, lengths and prompts.

modules.json lists the modules of a text in order: the transformer, then Pooling, Dense and Normalize, each with a
config.json in a folder of its own. Formats: the `save` of each module in sentence-transformers; older files have a
boolean for each mode of pooling. Other modules are refused by their type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from ..config.formats import PoolingMode
from ..errors import CheckpointError
from ..models.config_values import Positions, Width
from ..models.heads import QWEN3_RERANKER, Dense, Head, HeadActivation, HeadStep, Normalize, PairFrame, named_activation
from ..typed_json import shown
from .json_file import read_json, refusals_of

MODULES, PROMPTS, TEXTS = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
MAX_BYTES = 4 << 20
T = TypeVar("T")
ACTIVATIONS: dict[str, HeadActivation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "GELU": "gelu",
    "ReLU": "relu",
    "Sigmoid": "sigmoid",
}


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """Preparation of a text, and the head that pools its last states. `head` is None without a modules.json."""

    head: Head | None = None
    max_seq_length: int | None = None  # tokens, special ones included; None = the model's limit
    is_lower_case: bool = False  # texts are made lower case before they are split
    prompts: dict[str, str] = field(default_factory=dict)  # put before texts, by name
    default_prompt_name: str | None = None
    frame: PairFrame | None = None  # around pairs of texts


class _Keys(msgspec.Struct):
    is_original_qwen3_reranker: bool = False  # vLLM's key of config.json


class _Module(msgspec.Struct):
    type: str
    path: str = ""


class _Texts(msgspec.Struct):
    max_seq_length: Positions | None = None
    do_lower_case: bool = False


class _Prompts(msgspec.Struct):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None


class _Pooling(msgspec.Struct):
    """One mode or several, or the older booleans, in the order of their parts of the vector."""

    pooling_mode: PoolingMode | list[PoolingMode] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True

    def modes(self) -> tuple[PoolingMode, ...]:
        """Return the modes, at least one."""
        if isinstance(self.pooling_mode, str):
            return (self.pooling_mode,)
        if self.pooling_mode:
            return tuple(self.pooling_mode)
        stated: dict[PoolingMode, bool] = {
            "cls": self.pooling_mode_cls_token,
            "max": self.pooling_mode_max_tokens,
            "mean": self.pooling_mode_mean_tokens,
            "mean_sqrt_len_tokens": self.pooling_mode_mean_sqrt_len_tokens,
            "weightedmean": self.pooling_mode_weightedmean_tokens,
            "lasttoken": self.pooling_mode_lasttoken,
        }
        return tuple(mode for mode, is_on in stated.items() if is_on) or ("mean",)


class _Dense(msgspec.Struct):
    in_features: Width
    out_features: Width
    bias: bool = True
    activation_function: Annotated[str, Meta(max_length=200)] = "torch.nn.modules.activation.Tanh"
    use_residual: bool = False


def read_sentence_model(directory: Path) -> SentenceModel:
    """Read the files beside a checkpoint; defaults stand for missing files. Raises CheckpointError."""
    prompts = _read(directory / PROMPTS, _Prompts)
    if prompts.default_prompt_name not in (None, *prompts.prompts):
        reason = f"default_prompt_name is {shown(prompts.default_prompt_name)}, and no prompt has this name"
        raise CheckpointError(str(directory / PROMPTS), reason)
    head, texts = None, _read(directory / TEXTS, _Texts)
    if os.path.lexists(directory / MODULES):
        head = _head(directory, prompts)
    frame = QWEN3_RERANKER if _read(directory / "config.json", _Keys).is_original_qwen3_reranker else None
    names = prompts.prompts, prompts.default_prompt_name
    return SentenceModel(head, texts.max_seq_length, texts.do_lower_case, *names, frame)


def _head(directory: Path, prompts: _Prompts) -> Head:
    """Return the head that the modules after the transformer make."""
    file = directory / MODULES
    modules = read_json(file, MAX_BYTES, list[_Module])
    kinds = [module.type.rpartition(".")[2] for module in modules]
    for module in modules:
        if not module.type.startswith("sentence_transformers."):
            raise CheckpointError(
                str(file), f"module {shown(module.type)} is the checkpoint's code, which is never run"
            )
    if kinds[:2] != ["Transformer", "Pooling"] or modules[0].path not in ("", "."):
        reason = f"modules are {', '.join(map(shown, kinds))}: they must begin with Transformer and Pooling"
        raise CheckpointError(str(file), reason)
    pooling = _read(_folder(file, modules[1]) / "config.json", _Pooling)
    if not pooling.include_prompt and prompts.prompts:
        name = str(_folder(file, modules[1]) / "config.json")
        raise CheckpointError(name, "include_prompt is False: pooling without the prompt's tokens is not supported")
    return Head(pooling.modes(), tuple(_steps(file, modules[2:], kinds[2:])))


def _steps(file: Path, modules: list[_Module], kinds: list[str]) -> Iterator[HeadStep]:
    for module, kind in zip(modules, kinds, strict=True):
        if kind == "Normalize":
            yield Normalize()
        elif kind == "Dense":
            yield _dense(file, module)
        else:
            raise CheckpointError(str(file), f"module {shown(kind)} is not supported, only Dense and Normalize are")


def _dense(file: Path, module: _Module) -> Dense:
    config = _folder(file, module) / "config.json"
    read = read_json(config, MAX_BYTES, _Dense)
    if read.use_residual:
        raise CheckpointError(str(config), "use_residual is True: a residual layer is not supported")
    with refusals_of(config):
        activation = named_activation("activation_function", read.activation_function, ACTIVATIONS)
    return Dense("linear", activation, read.bias, folder=module.path)


def _folder(file: Path, module: _Module) -> Path:
    """Return the folder of a module. Raises CheckpointError for one outside of the checkpoint's."""
    path = PurePosixPath(module.path)
    if not module.path or path.is_absolute() or ".." in path.parts or "\\" in module.path or "\0" in module.path:
        raise CheckpointError(str(file), f"path {shown(module.path)} is not the name of a folder of the checkpoint")
    return file.parent / path


def _read(path: Path, record: type[T]) -> T:
    """Read the file as a record; a record of defaults where there is no file."""
    return read_json(path, MAX_BYTES, record) if os.path.lexists(path) else record()
