"""The API's slice of the settings, and the fixed limits of the HTTP API. Reads no settings itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..config.formats import SchedulingPolicy
from ..device.prices import PriceBasis
from ..link.restarts import NO_HEALING, Healing
from ..media.config import DEFAULT_MEDIA, MediaConfig
from ..text.parsers.call_formats import ToolParserName
from ..text.parsers.formats import ReasoningParserName
from .addition import Addition
from .http.tls import TlsConfig
from .keys.key import NO_KEYS, KeysConfig

OtlpProtocol = Literal["grpc", "http/protobuf"]
ToolCallParser = Literal["auto", ToolParserName]
ReasoningParser = Literal["auto", ReasoningParserName]
ContextOverflow = Literal["clip", "refuse"]

MAX_HEADER_BYTES = 64 * 2**10  # request line and headers together
MAX_N = 128  # choices of one prompt
MAX_PROMPTS = 2048  # prompts of one completions request
MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024  # of one stop string
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024  # entries; OpenAI's own limit is 300
MAX_BAD_WORDS = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_ALLOWED_TOKEN_IDS = 8192
MAX_ADAPTER_NAME = 200
MAX_ID_CHARS = 128  # of X-Request-Id and cache_salt
PATIENCE = 0.75  # share of its wait limit for which a request lets others pass
MS = 1000


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Place and limits of stored responses, files and batches."""

    data_dir: Path | None = None  # None = `default_dir`
    default_dir: Path | None = None  # used if possible; otherwise responses stay in memory, without files and batches
    max_stored_responses: int = 10_000
    max_stored_response_bytes: int = 256 * 2**20  # of all of them
    stored_response_days: float = 30.0
    max_file_bytes: int = 200 * 2**20  # of one upload
    max_data_bytes: int = 10 * 2**30  # of all files


_Endpoint = Annotated[str, msgspec.Meta(pattern=r"^tcp://(\*|\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$")]
_Steps = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Publication of KV cache events, by vLLM's keys. With several engines each adds its rank to the ports."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None  # None: zmq
    endpoint: _Endpoint = "tcp://127.0.0.1:5557"  # of the PUB socket
    replay_endpoint: _Endpoint | None = None  # of the ROUTER socket; None = nothing is replayed
    buffer_steps: _Steps = 10_000  # batches that are kept for replay
    hwm: _Steps = 100_000  # batches that wait for a subscriber; 0 = any
    max_queue_size: _Steps = 100_000  # without effect: batches are sent in the turn that brings them
    topic: str = ""


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Settings of the API for the one model it serves."""

    model_names: tuple[str, ...]  # the first is written into answers
    model_path: Path
    tokenizer_path: Path
    chat_template: str | None = None  # a file or a template, over the checkpoint's
    trust_request_chat_template: bool = False  # render templates sent by requests
    keys: KeysConfig = NO_KEYS
    tls: TlsConfig | None = None  # None = plain HTTP
    allowed_origins: tuple[str, ...] = ()
    host: str = "127.0.0.1"  # address that it listens on
    health_port: int | None = None  # of the process that answers probes; None = no such process
    allowed_hosts: tuple[str, ...] | None = None  # names in Host beside localhost and IP addresses; None = any
    max_connections: int = 1024  # open at once; the process needs some more files
    max_body_bytes: int = 8 * 2**20
    max_logprobs: int = 20
    enable_tokenizer_info_endpoint: bool = False
    enable_per_request_metrics: bool = False  # answers contain durations
    stream_interval: int = 1  # tokens of a choice in each part of a stream after the first
    context_overflow: ContextOverflow = "refuse"  # treatment of max_tokens beyond the rest of the context
    enable_auto_tool_choice: bool = True
    tool_call_parser: ToolCallParser = "auto"  # auto = as the chat template implies
    reasoning_parser: ReasoningParser = "auto"  # the same
    shutdown_timeout_s: float = 30.0
    log_stats_interval_s: float | None = 10.0  # None = no line about throughput
    allow_runtime_lora_updating: bool = False  # load and unload adapters over HTTP
    healing: Healing = NO_HEALING  # of engines that die or hang
    max_num_seqs: int = 64  # places in the batch of an engine
    host_memory_bytes: int | None = None  # for all processes of the server; None = the host's memory
    max_queue_delay: float | None = None  # seconds; a request that would wait longer is refused. None = no limit
    ttft_slo_ms: float | None = None  # the same for the first token
    tpot_slo_ms: float | None = None  # by policy slo: most milliseconds of a step beside a request that decodes
    scheduling_policy: SchedulingPolicy = "fair"
    has_device_traces: bool = False  # the engine has a directory for them
    otlp_traces_endpoint: str | None = None  # None = no traces
    otlp_traces_protocol: OtlpProtocol = "grpc"
    price_basis: PriceBasis = "on_demand"  # of modelled device time
    usd_per_hour: float | None = None  # of the whole instance, overriding the catalogue
    store: StoreConfig = StoreConfig()
    media: MediaConfig = DEFAULT_MEDIA
    kv_events: KvEventsConfig | None = None  # None = none are published
    additions: tuple[Addition, ...] = ()  # extensions of the API by other packages
    ready_file: Path | None = None  # contains the server's address while it is ready
    is_replica: bool = False  # started by the router of --replicas

    @property
    def patience_s(self) -> float:
        """Seconds for which a request lets more urgent ones pass: most of its wait limit."""
        limits_s = (inf if limit is None else limit for limit in (self.max_queue_delay, self.ttft_limit_s))
        return PATIENCE * min(limits_s)

    @property
    def ttft_limit_s(self) -> float | None:
        """`ttft_slo_ms` in seconds."""
        return None if self.ttft_slo_ms is None else self.ttft_slo_ms / MS
