"""The API's slice of the settings, and the limits of the wire that no setting changes. Reads nothing by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from neuronserve.server.api.addition import Addition
from neuronserve.server.api.http.tls import TlsConfig
from neuronserve.server.api.keys.key import NO_KEYS, KeysConfig
from neuronserve.server.device.prices import PriceBasis
from neuronserve.server.link.restarts import NO_HEALING, Healing
from neuronserve.server.text.parsers.formats import ReasoningParserName, ToolParserName

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
PATIENCE = 0.75  # of its limit, for which a request lets others pass
MS = 1000


@dataclass(frozen=True, slots=True)
class WorkerRole:
    """One of several API processes of a server."""

    number: int  # from 0: its place
    life: str  # of this process in that place; no other is called so
    server_pid: int  # of the process that has the engines, and is the parent of all
    is_successor: bool = False  # of one that has died: others serve while it loads


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where responses, files and batches are kept, and how much of them."""

    data_dir: Path | None = None  # None = `default_dir`
    default_dir: Path | None = (
        None  # used where possible; else responses are in memory, and there are no files and batches
    )
    is_shared: bool = False  # by several processes, of which one has the right to (`StoreLock`)
    max_stored_responses: int = 10_000
    max_stored_response_bytes: int = 256 * 2**20  # of all of them
    stored_response_days: float = 30.0
    max_file_bytes: int = 200 * 2**20  # of one upload
    max_data_bytes: int = 10 * 2**30  # of all files


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Settings of the API for the one model it serves."""

    model_names: tuple[str, ...]  # the first is written into answers
    model_path: Path
    tokenizer_path: Path
    chat_template: str | None = None  # a file or a template, over the checkpoint's
    trust_request_chat_template: bool = False  # render templates that requests bring along
    keys: KeysConfig = NO_KEYS
    tls: TlsConfig | None = None  # None = plain HTTP
    allowed_origins: tuple[str, ...] = ()
    host: str = "127.0.0.1"  # address that it listens on
    health_port: int | None = None  # of the process that answers probes; None = there is none
    allowed_hosts: tuple[str, ...] | None = None  # names in Host beside localhost and IP addresses; None = any
    max_connections: int = 1024  # open at once; the process must have files left for some more
    max_body_bytes: int = 8 * 2**20
    max_logprobs: int = 20
    enable_tokenizer_info_endpoint: bool = False
    enable_per_request_metrics: bool = False  # answers say how long they took
    context_overflow: ContextOverflow = "refuse"  # what becomes of max_tokens beyond the context that is left
    enable_auto_tool_choice: bool = True
    tool_call_parser: ToolCallParser = "auto"  # auto = as the chat template writes calls
    reasoning_parser: ReasoningParser = "auto"  # the same
    shutdown_timeout_s: float = 30.0
    log_stats_interval_s: float | None = 10.0  # None = no line about throughput
    allow_runtime_lora_updating: bool = False  # adapters come and go over HTTP
    healing: Healing = NO_HEALING  # of engines that die or hang
    max_num_seqs: int = 64  # places in the batch of an engine
    max_num_batched_tokens: int = 512  # of a step of an engine
    host_memory_bytes: int | None = None  # that all processes of the server may take; None = what the host has
    max_queue_delay: float | None = None  # seconds; who would wait longer is refused. None = nobody
    ttft_slo_ms: float | None = None  # the same of the first token
    has_device_traces: bool = False  # the engine has a directory for them
    otlp_traces_endpoint: str | None = None  # None = no traces
    otlp_traces_protocol: OtlpProtocol = "grpc"
    price_basis: PriceBasis = "on_demand"  # of modelled device time
    usd_per_hour: float | None = None  # of the whole instance, over the catalogue's
    store: StoreConfig = StoreConfig()
    additions: tuple[Addition, ...] = ()  # from outside of the server, such as faults that are injected on purpose
    ready_file: Path | None = None  # says where the server is while it is ready
    worker: WorkerRole | None = None  # None = this process has the engines, and answers alone

    @property
    def patience_s(self) -> float:
        """Seconds for which a request lets more urgent ones pass: most of what it was promised."""
        limits_s = (inf if limit is None else limit for limit in (self.max_queue_delay, self.ttft_limit_s))
        return PATIENCE * min(limits_s)

    @property
    def ttft_limit_s(self) -> float | None:
        """`ttft_slo_ms` in seconds."""
        return None if self.ttft_slo_ms is None else self.ttft_slo_ms / MS
