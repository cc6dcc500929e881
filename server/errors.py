"""Every error a user can meet, on one page.

NeuronserveError
├── StartError                    the process cannot serve: it prints the message and exits with code 2
│   ├── SettingsError             settings are wrong or contradict each other
│   ├── CheckpointError           the checkpoint: which file, which tensor, why
│   ├── DeviceError               no such accelerator, or it cannot do that
│   │   ├── DeviceMemoryError     the model does not fit on the accelerator; carries the account
│   │   └── KnownFailure          reports say that a real accelerator does not run it (--strict-device)
│   ├── HostMemoryError           the host has less memory than the emulation needs
│   ├── AdapterSlotsFull          more LoRA adapters than there is room for
│   ├── EngineLost                an engine died while it served: exit code 1 at the server's end
│   └── ReplicaEnded              a replica of --replicas died again and again: exit code 1
├── StepTooLarge                  a step is beyond what the runner has room for: a defect of the server
├── KernelAccessError             a kernel left the memory of its operands: a defect, found in checked mode only
└── RequestError                  one request is refused; no other request notices
    ├── InvalidRequest            400, with the offending field
    ├── Unauthorized              401: no valid API key
    ├── Forbidden                 403: the key does not open this
    │   ├── HostNotAllowed        403: the request names another host
    │   └── CrossOrigin           403: a page of another origin sent the request
    ├── UpdatesDisabled           403: LoRA adapters are fixed
    ├── ModelNotFound             404
    ├── NotFound                  404: no such stored object or file
    ├── RequestTimeout            408: the request's own time is over
    ├── Conflict                  409: what is running or loaded does not allow it
    ├── PayloadTooLarge           413
    ├── UnsupportedMediaType      415
    ├── TooManyConnections        429
    ├── QueueFull                 429: the bounded queue is full
    │   ├── Overloaded            429: the request would wait too long, or the host's memory is short
    │   └── RateLimited           429: the API key has used what it may for now
    ├── HeadersTooLarge           431
    ├── GenerationFailed          500: the model failed on this request alone
    ├── TokenizerFailed           500: the checkpoint's tokenizer cannot encode a text
    ├── PoisonRequest             500: the request brought the engine down twice
    ├── Unavailable               503: the server is draining
    ├── EngineDead                503: the engine process has ended
    └── StorageFull               507: nothing more can be stored

Errors of one room stay there: `ChatError`, `Unreachable`, `CannotPlace`, `ReplicaLost`, `ModelChanged`, `StageLost`,
`ClientFailed`, `CassetteError`, `NotRecorded`, `UpstreamFailed`, `InjectedError`, `InjectedLimit`.
"""

from __future__ import annotations


class NeuronserveError(Exception):
    """Root of the tree. `str()` of any of these is fit to be shown to a user."""


class StartError(NeuronserveError):
    """The server cannot start. The command prints the message and exits with `exit_code`."""

    exit_code = 2


class SettingsError(StartError):
    """A setting is wrong, or two settings contradict each other."""


class CheckpointError(StartError):
    """The checkpoint cannot be served: names the file, the tensor where there is one, and the reason."""

    def __init__(self, file: str, reason: str, tensor: str | None = None) -> None:
        super().__init__(f"{file if tensor is None else f'{file}: tensor {tensor}'}: {reason}")
        self.file, self.tensor, self.reason = file, tensor, reason


class DeviceError(StartError):
    """The accelerator is unknown, or cannot do what was asked of it."""


class DeviceMemoryError(DeviceError):
    """The model does not fit in device memory. The message holds the whole account."""


class KnownFailure(DeviceError):
    """A real accelerator is reported not to run the model: names the error, its source and date."""


class HostMemoryError(StartError):
    """The host that runs the emulation has too little memory, whatever the emulated accelerator has."""


class AdapterSlotsFull(StartError):
    """More LoRA adapters at once than max_loras, at the start or when one more is loaded."""


class EngineLost(StartError):
    """An engine died while the server ran. The server ends as asked, but with exit code 1."""

    exit_code = 1


class ReplicaEnded(StartError):
    """A replica died more often than it is restarted. The router ends, so that a supervisor restarts it."""

    exit_code = 1


class StepTooLarge(NeuronserveError):
    """A step exceeds the limits of the runner. Nothing of it has been computed."""

    def __init__(self, request_id: str, asked: str, limit: str) -> None:
        super().__init__(f"request {request_id}: {asked}; the runner has room for {limit}")
        self.request_id = request_id


class RequestError(NeuronserveError):
    """One request is refused. `param` names the offending field in the caller's own terms."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None

    def __init_subclass__(cls, status: int | None = None, kind: str | None = None, code: str | None = None) -> None:
        """Set what differs from the base: the HTTP status, OpenAI's `type`, and the code."""
        cls.status, cls.kind, cls.code = status or cls.status, kind or cls.kind, code or cls.code

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param
        self.code = self.code if code is None else code


class InvalidRequest(RequestError):
    """The request is malformed, out of range, or can never be served by this model."""


class ModelNotFound(RequestError, status=404, code="model_not_found"):
    """The request names a model that this server does not serve."""


class PayloadTooLarge(RequestError, status=413):
    """The body is larger than the server reads."""


class TokenizerFailed(RequestError, status=500, kind="server_error", code="tokenizer_failed"):
    """The checkpoint's tokenizer fails on a text; for example, a pattern takes too many steps."""


class QueueFull(RequestError, status=429, kind="rate_limit_error", code="queue_full"):
    """The bounded queue is full; the client may try again later. `limit` names the setting that refused it."""

    limit = "max_num_queued_reqs"
    retry_after_s = 1


class Overloaded(QueueFull, code="overloaded"):
    """The server can take the request later, in about `retry_after_s` seconds."""

    def __init__(self, message: str, limit: str, retry_after_s: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.limit, self.retry_after_s = limit, retry_after_s


class Unavailable(RequestError, status=503, kind="service_unavailable", code="draining"):
    """The server is draining: it finishes open requests and takes no new ones."""


class EngineDead(RequestError, status=503, kind="engine_error", code="engine_dead"):
    """The engine process has ended; every open request ends with this error."""


class PoisonRequest(RequestError, status=500, kind="engine_error", code="poison_request"):
    """An engine died twice while it computed this request alone."""


class GenerationFailed(RequestError, status=500, kind="server_error", code="generation_failed"):
    """The model failed on this request alone."""


class Unauthorized(RequestError, status=401, kind="authentication_error", code="invalid_api_key"):
    """The request has no API key, or an unknown one."""


class Forbidden(RequestError, status=403, kind="permission_error", code="insufficient_permissions"):
    """The request's API key is valid but does not open this endpoint."""


class RateLimited(QueueFull, code="rate_limit_exceeded"):
    """The request's API key has reached its `limit`, which OpenAI's error object names in `type`."""

    def __init__(self, message: str, limit: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.kind, self.limit, self.retry_after_s = limit, limit, max(1, retry_after_s)


class RequestTimeout(RequestError, status=408, kind="timeout_error", code="timeout"):
    """The request's own time limit passed before any part of its answer was there."""


class UnsupportedMediaType(RequestError, status=415):
    """The body is not declared to be JSON. So a web page cannot send it without a browser's preflight request."""


class HeadersTooLarge(RequestError, status=431):
    """Request line and headers are larger than the server reads."""


class TooManyConnections(RequestError, status=429, kind="rate_limit_error", code="too_many_connections"):
    """The server holds as many connections as its open files allow."""


class NotFound(RequestError, status=404, code="not_found"):
    """The request names a stored object or a file that does not exist."""


class StorageFull(RequestError, status=507, kind="server_error", code="storage_full"):
    """Nothing more can be stored: the disk is full or fails, or a limit of the settings is reached."""


class HostNotAllowed(Forbidden, code="host_not_allowed"):
    """The Host header names a host that is not this server."""


class CrossOrigin(Forbidden, code="cross_origin"):
    """A page of an origin that is not allowed sent the request."""


class UpdatesDisabled(RequestError, status=403, code="lora_updating_disabled"):
    """The server does not load or unload LoRA adapters while it runs."""


class Conflict(RequestError, status=409, code="conflict"):
    """Something that runs, or is loaded, does not allow it."""


class KernelAccessError(NeuronserveError):
    """A kernel compiled in checked mode accessed memory of none of its operands; `operand` is the nearest of them."""

    def __init__(self, message: str, kernel: str, instruction: str, operand: str) -> None:
        super().__init__(message)
        self.kernel, self.instruction, self.operand = kernel, instruction, operand
