"""Settings of `neuronserve serve`: the engine's, and the HTTP server's."""

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

from pydantic import Field, model_validator
from pydantic_settings import CliToggleFlag

from ..api.config import (
    ApiConfig,
    ContextOverflow,
    OtlpProtocol,
    ReasoningParser,
    StoreConfig,
    ToolCallParser,
)
from ..api.http.host_names import names_of
from ..config import DataParallel, EngineConfig, TraceConfig
from ..config.formats import RunnerKind
from ..device.catalog import instance
from ..device.prices import DEFAULT_REGION, PriceBasis
from ..host.memory import GIB, available_bytes
from ..host.open_files import max_connections, raise_open_files
from ..link.handle import EngineMode
from .base import File, Texts, slice_of
from .engine import EngineSettings
from .healing import HealingSettings
from .keys import KeySettings
from .logs import LogFormat, log_to_stderr
from .media import MediaSettings
from .model import DEFAULT_MODEL
from .objectives import ObjectiveSettings
from .offload import OffloadSettings
from .pipeline import PipelineSettings
from .pooling import PoolingSettings
from .several import SeveralSettings
from .sources import data_home, traces_protocol
from .strict import StrictSettings
from .tls import TlsSettings

log = logging.getLogger("neuronserve")
SECRETS = frozenset({"api_key", "admin_api_key"})


class ServeSettings(
    EngineSettings,
    HealingSettings,
    OffloadSettings,
    PoolingSettings,
    MediaSettings,
    ObjectiveSettings,
    PipelineSettings,
    SeveralSettings,
    KeySettings,
    TlsSettings,
    StrictSettings,
):
    """Settings of `neuronserve serve`."""

    data_parallel_size: int = Field(
        1, ge=1, le=64, description="number of engines; each has tensor_parallel_size cores, and limits of its own"
    )
    replicas: int = Field(
        1, ge=1, le=64, description="servers behind one address, each with its own engines, CPUs and data_dir/NUMBER"
    )
    runner: RunnerKind = Field("auto", description="generate text, or only encode; auto follows the model's files")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="second port, where a separate process answers health probes (default: none)",
    )
    served_model_name: Texts = Field((), description="name of the model for clients; repeatable")
    tokenizer: str | None = Field(None, description="directory with the tokenizer files (default: the model's)")
    engine_mode: EngineMode = Field(
        "process", description="run the engine in its own process, or in a thread (for tests)"
    )
    chat_template: str | None = Field(None, description="file with a chat template, or the template itself")
    allow_runtime_lora_updating: CliToggleFlag[bool] = Field(
        False,
        description="let clients load and unload LoRA adapters from this host's directories; implies enable_lora",
    )
    trust_request_chat_template: CliToggleFlag[bool] = Field(
        False, description="render the chat_template of a request, in a limited process"
    )
    console: bool = Field(True, description="serve a console for browsers at /")
    allowed_origins: Texts = Field((), description="web origin that browsers may call from, * for any; repeatable")
    allowed_hosts: Texts = Field(
        (),
        description="name allowed in Host beside localhost and IP addresses, * for any; repeatable "
        "(default: none on a loopback address, else any)",
    )
    host_memory_gib: float | None = Field(
        None, gt=0, le=1_000_000, description="GiB of host memory that the server may use (default: all free memory)"
    )
    shutdown_timeout: float = Field(30, ge=0, le=86400, description="seconds that running requests get after SIGTERM")
    max_body_bytes: int = Field(8 * 2**20, ge=1024, le=2**30, description="largest request body")
    data_dir: File = Field(
        None,
        description="directory for responses, files and batches; '' keeps responses in memory, without batches "
        "(default: neuronserve/PORT under XDG_DATA_HOME or ~/.local/share; '' with --port 0)",
    )
    max_stored_responses: int = Field(10_000, ge=0, le=10_000_000, description="most stored responses of /v1/responses")
    max_file_bytes: int = Field(200 * 2**20, ge=1024, le=2**34, description="largest file of /v1/files")
    max_data_bytes: int = Field(10 * 2**30, ge=1024, le=2**50, description="most bytes of all files")
    max_logprobs: int = Field(20, ge=0, le=1024, description="most alternatives per token in logprobs")
    enable_tokenizer_info_endpoint: CliToggleFlag[bool] = Field(
        False, description="serve the tokenizer's configuration and the chat template at /tokenizer_info"
    )
    enable_per_request_metrics: CliToggleFlag[bool] = Field(
        False, description="add `metrics` with times to answers, as vLLM does"
    )
    stream_interval: int = Field(1, ge=1, le=1_000_000, description="tokens in each part of a stream after the first")
    context_overflow: ContextOverflow = Field(
        "refuse", description="clip max_tokens to the remaining context, or refuse the request"
    )
    enable_auto_tool_choice: bool = Field(True, description="let the model decide whether to call a tool")
    tool_call_parser: ToolCallParser = Field(
        "auto", description="format of the model's tool calls; auto follows the chat template"
    )
    reasoning_parser: ReasoningParser = Field(
        "auto", description="format of the model's reasoning; auto follows the chat template"
    )
    ready_file: File = Field(None, description="JSON file with the server's address, present while the server is ready")
    log_format: LogFormat = Field("text", description="text lines, or one JSON object a line")
    disable_access_log: CliToggleFlag[bool] = Field(False, description="log no line per request")
    disable_log_stats: CliToggleFlag[bool] = Field(False, description="log no lines about throughput; /metrics stays")
    log_stats_interval: float = Field(10, gt=0, le=86400, description="seconds between lines about throughput")
    price_basis: PriceBasis = Field("on_demand", description="price of the catalogue to charge modelled time at")
    usd_per_hour: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="price of the whole instance in dollars an hour (default: the catalogue's)",
    )
    trace_dir: str | None = Field(
        None, description="directory of device traces, which are started and stopped over HTTP (default: no tracing)"
    )
    otlp_traces_endpoint: str | None = Field(
        None, pattern="^https?://", description="OTLP collector for OpenTelemetry traces (default: none)"
    )
    otlp_traces_protocol: OtlpProtocol | None = Field(
        None, description="protocol of the collector (default: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, else grpc)"
    )

    def put_in_force(self) -> None:
        """Set up the log and the limit of open files too. Raises StartError if the limit is too small to serve."""
        super().put_in_force()
        log_to_stderr(self.log_level, self.log_format, not self.disable_access_log)
        for name in sorted(self.model_fields_set):
            log.debug("setting %s: %s", name, "***" if name in SECRETS else getattr(self, name))
        raise_open_files()
        max_connections(self.data_parallel_size)

    @property
    def notices(self) -> tuple[str, ...]:
        asked, possible = self.max_num_queued_reqs, self._max_open
        lines = list(super().notices)
        if self.replicas > 1:
            lines.append("there is no console with --replicas: it would show what one of them knows")
        if asked > possible:
            why = "the process may open no more files (ulimit -n)"
            lines.append(f"--max-num-queued-reqs is {possible}, not {asked}: {why}")
        return tuple(lines)

    @property
    def _max_open(self) -> int:
        """Most open sequences, with connections left for probes."""
        return max_connections(self.data_parallel_size) * 15 // 16

    @model_validator(mode="after")
    def _names_can_be_said(self) -> Self:
        if any("\udc80" <= character <= "\udcff" for name in self.model_names for character in name):
            raise ValueError(
                f"the model's name is not UTF-8: {self.model_names[0]!a}; --served-model-name gives another"
            )
        return self

    @model_validator(mode="after")
    def _adapters_have_names_of_their_own(self) -> Self:
        if taken := {
            name for name in self.model_names if any(pair.startswith(f"{name}=") for pair in self.lora_modules)
        }:
            raise ValueError(f"lora_modules has {', '.join(taken)}, which is the name of the model itself")
        return self

    @model_validator(mode="after")
    def _replicas_are_apart(self) -> Self:
        if self.replicas > 1 and self.console and "console" in self.model_fields_set:
            raise ValueError("console shows what one replica knows, so it needs replicas 1")
        if self.replicas > 1 and self.kv_events is not None:
            raise ValueError("kv_events_config names one port, so it needs replicas 1")
        return self

    @property
    def has_adapters(self) -> bool:
        return super().has_adapters or self.allow_runtime_lora_updating

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names of the model for clients; answers carry the first."""
        if self.served_model_name:
            return self.served_model_name
        return (self.model if self.model != str(DEFAULT_MODEL) else "default",)

    @property
    def features(self) -> tuple[str, ...]:
        """Features in use that a real accelerator's software may lack, named as in device/support.json."""
        batching = self.batching or self.serving_stack.batching
        used = {"prefix_caching": self.enable_prefix_caching, "chunked_prefill": batching == "continuous"}
        return tuple(name for name, is_used in used.items() if is_used)

    def require_price(self) -> None:
        """Raise DeviceError if the requested price is not in the catalogue.

        Without a request an instance of unknown price is served too, and nothing is charged in dollars.
        """
        if self.usd_per_hour is None and (self.price_basis != "on_demand" or self.region != DEFAULT_REGION):
            instance(self.device).price(self.price_basis)

    def engine_config(self, model_path: Path) -> EngineConfig:
        """Return the engine's configuration, with the tokenizer that grammars need."""
        trace = TraceConfig(self.trace_dir)
        most = min(self.max_num_queued_reqs, self._max_open)
        engine = super().engine_config(model_path)
        return replace(
            engine,
            tokenizer_path=self.tokenizer,
            trace=trace,
            max_num_queued_reqs=most,
            pooling=self.pooling_mode,
            normalize=self.normalizes,
            logs_cache=self.kv_events is not None,
            pipeline=self.pipeline,
        )

    def engine_configs(self, model_path: Path) -> tuple[EngineConfig, ...]:
        """The slice of each engine: they and their stages divide the host's threads, and with spare ones its memory."""
        whole = replace(self.engine_config(model_path), **self.copies(self.data_parallel_size))
        size, budget = self.data_parallel_size, self.memory_bytes
        stages = 1 if whole.pipeline.addresses else whole.pipeline.size  # of an engine, on this host
        if self._num_engines * stages == 1:
            return (replace(whole, data_parallel=DataParallel(host_memory_bytes=budget)),)
        share = min(available_bytes(), budget or sys.maxsize) // (self._num_engines * stages)
        ends = [whole.cpu_threads * rank // size for rank in range(size + 1)]
        return tuple(
            replace(
                whole,
                cpu_threads=max(1, (ends[rank + 1] - ends[rank]) // stages),
                cpus=() if stages > 1 else whole.cpus[ends[rank] : ends[rank + 1]],
                data_parallel=DataParallel(rank, size, share, self.num_prefill),
            )
            for rank in range(size)
        )

    @property
    def _num_engines(self) -> int:
        """Engines that may run at once, spare ones too."""
        return self.data_parallel_size * (2 if self.spare_engine else 1)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.host_memory_gib is None else int(self.host_memory_gib * GIB)

    @property
    def port_data_dir(self) -> Path | None:
        """Directory by port, so that two servers of a user do not share one; None if the port is not known yet."""
        is_wanted = "data_dir" not in self.model_fields_set and self.port
        return data_home() / "neuronserve" / str(self.port) if is_wanted else None

    def api_config(self, model_path: Path) -> ApiConfig:
        """Return the API's configuration."""
        return slice_of(
            ApiConfig,
            self,
            model_names=self.model_names,
            model_path=model_path,
            tokenizer_path=Path(self.tokenizer) if self.tokenizer else model_path,
            keys=self.keys_config,
            allowed_hosts=names_of(self.host, self.allowed_hosts),
            tls=self.tls_config,
            max_connections=max_connections(self._num_engines),
            host_memory_bytes=self.memory_bytes,
            shutdown_timeout_s=self.shutdown_timeout,
            store=slice_of(StoreConfig, self, default_dir=self.port_data_dir),
            media=self.media_config,
            healing=self.healing,
            kv_events=self.kv_events,
            is_replica=self.replicas > 1 or bool(self.models) or self.multi_model_endpoint,
            log_stats_interval_s=None if self.disable_log_stats else self.log_stats_interval,
            has_device_traces=self.trace_dir is not None,
            otlp_traces_protocol=cast(OtlpProtocol, traces_protocol(self.otlp_traces_protocol)),
        )
