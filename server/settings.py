"""Every setting of the server, defined once: argv over `NEURONSERVE_*` environment over the YAML file of --config.

The only file that reads argv and the environment. Everything else is handed its frozen slice.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from server.api.config import ApiConfig
from server.config import Dtype, EngineConfig
from server.engine.process import EngineMode
from server.errors import SettingsError

ENV_PREFIX = "NEURONSERVE_"
DEFAULT_MODEL = Path(__file__).resolve().parent / "default_model"

Texts = Annotated[tuple[str, ...], NoDecode]


class ServeSettings(BaseSettings):
    """What `neuronserve serve` can be told. Flag names are vLLM's where vLLM has the flag."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=False)

    model: str = Field(str(DEFAULT_MODEL), description="checkpoint directory or hub id (default: the built-in model)")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    served_model_name: Texts = Field((), description="name clients use for the model; may be repeated")
    tokenizer: str | None = Field(None, description="directory with the tokenizer files (default: the model's)")
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Literal["auto", "bfloat16", "float32"] = Field("auto", description="weights and KV cache; auto is bfloat16")
    device: str = Field("inf2.xlarge", description="emulated instance, such as inf1.xlarge, inf2.8xlarge, trn1.2xlarge")
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="NeuronCores the model is sharded over")
    max_model_len: int | None = Field(None, ge=2, description="longest context in tokens (default: the model's)")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences running at once")
    max_num_batched_tokens: int = Field(512, ge=1, le=131072, description="tokens computed in one step")
    max_num_queued_reqs: int = Field(1024, ge=1, le=1_000_000, description="open sequences; more get a 429")
    block_size: int = Field(32, ge=1, le=1024, description="tokens in a KV cache block")
    enable_prefix_caching: bool = Field(True, description="share the KV cache of equal prompt beginnings")
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="KV cache blocks (default: what fits in device memory)"
    )
    device_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of device memory that may be used")
    cpu_threads: int | None = Field(None, ge=1, le=1024, description="host threads (default: all this process may use)")
    kernel_cache_dir: str | None = Field(
        None, description="where compiled kernels are kept (default: under XDG_CACHE_HOME or ~/.cache)"
    )
    engine_mode: EngineMode = Field("process", description="run the engine in its own process, or in a thread")
    chat_template: str | None = Field(None, description="file with a chat template, or the template itself")
    api_key: Texts = Field((), description="key that clients must send to /v1; may be repeated")
    allowed_origins: Texts = Field((), description="web origin that browsers may call from, * for any; may be repeated")
    shutdown_timeout: float = Field(30, ge=0, le=86400, description="seconds running requests may take after SIGTERM")
    max_body_bytes: int = Field(8 * 2**20, ge=1024, le=2**30, description="largest request body")
    max_logprobs: int = Field(20, ge=0, le=1024, description="most alternatives per token a request may ask for")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe messages shown")
    disable_access_log: bool = Field(False, description="write no line per request")

    @field_validator("served_model_name", "api_key", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """The environment and YAML may give one text with commas."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)  # `load_serve_settings` merges the others itself, to know where a value came from

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names clients may use, the first of which is written into answers."""
        if self.served_model_name:
            return self.served_model_name
        return (self.model if self.model != str(DEFAULT_MODEL) else "default",)

    def engine_config(self, model_path: Path) -> EngineConfig:
        """The engine's slice, with everything that depends on the host resolved."""
        dtype: Dtype = "bfloat16" if self.dtype == "auto" else self.dtype
        return EngineConfig(
            model_path=str(model_path),
            device=self.device,
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_queued_reqs=self.max_num_queued_reqs,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            device_memory_utilization=self.device_memory_utilization,
            num_blocks_override=self.num_gpu_blocks_override,
            cpu_threads=self.cpu_threads or len(os.sched_getaffinity(0)),
            kernel_cache_dir=self.kernel_cache_dir or str(_cache_home() / "neuronserve" / "kernels"),
        )

    def api_config(self, model_path: Path) -> ApiConfig:
        """The API's slice."""
        return ApiConfig(
            model_names=self.model_names,
            model_path=model_path,
            tokenizer_path=Path(self.tokenizer) if self.tokenizer else model_path,
            chat_template=self.chat_template,
            api_keys=self.api_key,
            allowed_origins=self.allowed_origins,
            max_body_bytes=self.max_body_bytes,
            max_logprobs=self.max_logprobs,
            shutdown_timeout_s=self.shutdown_timeout,
            has_access_log=not self.disable_access_log,
        )


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` one argument for each field; those not given stay out of the namespace."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="YAML file with these settings")
    for name, field in ServeSettings.model_fields.items():
        parser.add_argument(name if name == "model" else _flag(name), **_options(name, field))


def load_serve_settings(arguments: Mapping[str, Any]) -> ServeSettings:
    """Settle parsed argv, environment and YAML file. Raises SettingsError, which names the source, value and limit."""
    argv = {key: value for key, value in arguments.items() if key in ServeSettings.model_fields}
    environment = _environment()
    config = arguments.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
    file = _yaml(config) if config else {}
    try:
        return ServeSettings(**{**file, **environment, **argv})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if name in argv:
            source = "MODEL" if name == "model" else _flag(name)
        else:
            source = ENV_PREFIX + name.upper() if name in environment else f"{config}: {name}"
        raise SettingsError(f"{source}: {_complaint(first)}") from error


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _options(name: str, field: FieldInfo) -> dict[str, Any]:
    """How argparse takes a field; the values stay text, so that there is one place that checks them."""
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(name, field)}
    if name == "model":
        return options | {"nargs": "?", "metavar": "MODEL"}
    if field.annotation is bool:
        return options | {"action": argparse.BooleanOptionalAction if name.startswith("enable") else "store_true"}
    if field.annotation == tuple[str, ...]:
        return options | {"action": "append", "metavar": "TEXT"}
    choices = get_args(field.annotation)
    is_choice = bool(choices) and all(isinstance(choice, str) for choice in choices)
    return options | {"metavar": "{" + ",".join(choices) + "}" if is_choice else _metavar(field)}


def _metavar(field: FieldInfo) -> str:
    kinds = {field.annotation, *get_args(field.annotation)}
    return "N" if int in kinds else "X" if float in kinds else "TEXT"


def _help(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    shows_default = field.default not in (None, (), False) and name != "model"
    return f"{text} (default: {field.default})" if shows_default else text


def _environment() -> dict[str, Any]:
    """The fields set in the environment. Kubernetes sets NEURONSERVE_PORT=tcp://... beside a Service of our name."""
    values = EnvSettingsSource(ServeSettings)()
    if str(values.get("port", "")).startswith("tcp://"):
        del values["port"]
    return values


def _yaml(path: str) -> dict[str, Any]:
    """The settings in a YAML file; keys may be written with dashes, as the flags are."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict | None):
        raise SettingsError(f"--config: {path} must hold a mapping of settings, not {type(content).__name__}")
    return {str(key).replace("-", "_"): value for key, value in (content or {}).items()}


def _complaint(error: Any) -> str:
    """What is wrong, the value that was given and the limit, in one line."""
    if error["type"] == "extra_forbidden":
        return "there is no such setting"
    message = str(error["msg"])
    expected = message.replace("Input should be", "must be").replace("Value error, ", "").split(", unable to")[0]
    return f"{expected}, not {str(error['input'])[:80]!r}"


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
