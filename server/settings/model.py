"""Settings of every command that reads weights: model, formats, cores, lengths."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import CliPositionalArg

from ..config import MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE, CatalogConfig
from ..config.formats import DEFAULT_GROUPS, GroupSize, Quantization, RequestedFormats, WeightGroups
from ..errors import SettingsError
from .base import Implied, Numbers, Texts, slice_of
from .calibration import TimeSettings
from .neuron import NeuronKnobs, as_json, read_knobs
from .sources import cache_home, default_kernel_cache, neuron_variables

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "default_model"


Json = Annotated[str | None, BeforeValidator(as_json)]


def _whole(value: object) -> object:
    """Return a text of digits as a number."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


class ModelSettings(TimeSettings):
    """Base of the settings of commands that compile or serve. Names are vLLM's, those of buckets NxD Inference's."""

    has_headings = True

    model: CliPositionalArg[str] = Field(
        str(DEFAULT_MODEL), description="checkpoint directory, GGUF file or hub id (default: the built-in model)"
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    mmproj: str | None = Field(None, description="GGUF file of a vision encoder, beside a model that is a GGUF file")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="type of activations and unquantized weights; auto is bfloat16"
    )
    quantization: Literal["auto", "none", Quantization] = Field(
        "auto",
        description="format of the weights; int8 quantizes activations per token, int8-groups, int4 and mxfp4 per 32"
        " values; auto is the files' own",
    )
    quantization_group_size: Annotated[GroupSize | None, BeforeValidator(_whole)] = Field(
        None, description="int4 weights that share a scale (default: the files' own, or 32)"
    )
    quantization_symmetric: bool = Field(
        True,
        description="int4 without zero points; with zero points it is more exact and takes more memory",
    )
    modules_to_not_convert: Texts = Field((), description="module to leave unquantized, such as lm_head; repeatable")
    tensor_parallel_size: int = Field(
        TENSOR_PARALLEL_SIZE, ge=1, le=64, description="NeuronCores the model is sharded over"
    )
    enable_expert_parallel: bool = Field(
        False, description="shard a layer's experts whole over the cores, instead of a slice of each expert"
    )
    kernel_cache_dir: str | None = Field(
        None, description="directory of compiled kernels (default: under XDG_CACHE_HOME or ~/.cache)"
    )
    max_model_len: int | None = Field(None, ge=2, description="longest context in tokens (default: the model's)")
    context_encoding_buckets: Numbers = Field(
        (), description="compiled prompt lengths, with commas (default: powers of two from 128)"
    )
    token_generation_buckets: Numbers = Field(
        (), description="compiled context lengths of decode, with commas (default: by --batching)"
    )

    device: str = Field("inf2.xlarge", description="emulated instance, such as inf1.xlarge, inf2.8xlarge, trn1.2xlarge")
    max_num_seqs: int = Field(MAX_NUM_SEQS, ge=1, le=4096, description="sequences running at once")
    additional_config: Json = Field(
        None, description="JSON with override_neuron_config (NxD Inference's) or neuron_config (vLLM-Neuron's)"
    )
    override_neuron_config: Json = Field(None, description="NxD Inference's configuration as JSON")

    @classmethod
    def implied(cls, given: Mapping[str, Any], variables: Mapping[str, str]) -> Mapping[str, Implied]:
        """Return settings that follow from Neuron's own configuration."""
        additional, override = (as_json(given.get(name)) for name in ("additional_config", "override_neuron_config"))
        length = str(given.get("max_model_len", ""))
        knobs = read_knobs(additional, override, variables, int(length) if length.isdecimal() else None)
        return {**super().implied(given, variables), **knobs.implied}

    @property
    def neuron(self) -> NeuronKnobs:
        """Neuron's own configuration."""
        return read_knobs(self.additional_config, self.override_neuron_config, neuron_variables(), self.max_model_len)

    @property
    def catalog_config(self) -> CatalogConfig:
        """Sources of the catalogue, with the logical cores of Neuron's own configuration."""
        return replace(super().catalog_config, logical_nc_config=self.neuron.config.logical_nc_config)

    @property
    def notices(self) -> tuple[str, ...]:
        return self.neuron.notices

    @property
    def compiled_model(self) -> Path | None:
        """Compiled model that replaces `model`."""
        return None

    @property
    def requested_formats(self) -> RequestedFormats:
        """Requested formats, with `auto` resolved."""
        return slice_of(
            RequestedFormats,
            self,
            dtype="bfloat16" if self.dtype == "auto" else self.dtype,
            quantization=None if self.quantization == "auto" else self.quantization,
            groups=self._groups,
        )

    @property
    def _groups(self) -> WeightGroups | None:
        size, is_symmetric = self.quantization_group_size, self.quantization_symmetric
        if size is None and is_symmetric:
            return None
        if self.quantization not in ("auto", "int4"):
            raise SettingsError(
                f"quantization is {self.quantization}: int4 alone has groups of a chosen size and symmetry"
            )
        return WeightGroups(size or DEFAULT_GROUPS.size, is_symmetric)

    @property
    def kernel_cache(self) -> str:
        """Directory of compiled kernels."""
        return self.kernel_cache_dir or default_kernel_cache()

    @property
    def gguf_cache(self) -> Path:
        """Directory of the configurations and tokenizers made from GGUF files."""
        return cache_home() / "neuronserve" / "gguf"
