"""Every error a user can meet, on one page.

NeuronserveError
├── StartError                 the process cannot serve: printed in full, then exit code 2
│   ├── SettingsError          settings that are wrong or contradict each other
│   ├── CheckpointError        the checkpoint: which file, which tensor, why
│   ├── DeviceError            no such part, or the part cannot do that
│   │   └── DeviceMemoryError  the model does not fit on the part; carries the account
│   ├── HostMemoryError        the host has less memory than the emulation needs
│   ├── AdapterSlotsFull       more adapters (LoRA) than there is room for
│   ├── EngineLost             an engine has died while it served: exit code 1 at the server's end
│   └── WorkerLost             an API process, one of several, died again and again: the same
├── StepTooLarge               a step is beyond what the runner has room for: our own mistake, never a request's
├── RequestError               one request is refused; nothing else notices (4xx)
│   ├── InvalidRequest         400, with the offending field
│   ├── ModelNotFound          404
│   ├── PayloadTooLarge        413
│   ├── TokenizerFailed        500: the checkpoint's tokenizer cannot encode a text
│   └── QueueFull              429
│       └── Overloaded         429: it would wait too long, or the host's memory is short
├── Unavailable                503: draining
├── EngineDead                 503: the engine process has ended
└── KernelAccessError          a kernel left the memory of its operands: our own mistake, found in checked mode only
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
        where = file if tensor is None else f"{file}: tensor {tensor}"
        super().__init__(f"{where}: {reason}")
        self.file = file
        self.tensor = tensor
        self.reason = reason


class DeviceError(StartError):
    """The part is unknown, or cannot do what was asked of it."""


class DeviceMemoryError(DeviceError):
    """What was asked for does not fit in device memory. The message holds the whole account."""


class HostMemoryError(StartError):
    """The host running the emulation has too little memory, whatever the emulated part would have had."""


class AdapterSlotsFull(StartError):
    """More adapters (LoRA) at once than max_loras; at the start, or when one more is to be loaded."""


class EngineLost(StartError):
    """An engine has died while the server ran. The server ends as asked, but not with exit code 0."""

    exit_code = 1


class WorkerLost(StartError):
    """An API process has died more often than it is started again. The server ends, for others to start it anew."""

    exit_code = 1


class StepTooLarge(NeuronserveError):
    """A step asks the runner for more than it was made for. Nothing of it has been computed."""

    def __init__(self, request_id: str, asked: str, limit: str) -> None:
        super().__init__(f"request {request_id}: {asked}; the runner has room for {limit}")
        self.request_id = request_id


class RequestError(NeuronserveError):
    """One request is refused. `param` names the offending field in the caller's own terms."""

    status = 400
    kind = "invalid_request_error"
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """The request is malformed, out of range, or can never be served by this model."""


class ModelNotFound(RequestError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"


class PayloadTooLarge(RequestError):
    """The body is larger than the server reads."""

    status = 413


class TokenizerFailed(RequestError):
    """The checkpoint's tokenizer fails on a text, such as by a pattern that takes too many steps."""

    status = 500
    kind = "server_error"
    code = "tokenizer_failed"


class QueueFull(RequestError):
    """The bounded queue is full; the client may try again later. `limit` names the setting whose limit it met."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    limit = "max_num_queued_reqs"
    retry_after_s = 1


class Overloaded(QueueFull):
    """The server can take the request later, in about `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, limit: str, retry_after_s: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.limit, self.retry_after_s = limit, retry_after_s


class Unavailable(RequestError):
    """The server is draining: it finishes what it has and takes nothing new."""

    status = 503
    kind = "service_unavailable"
    code = "draining"


class EngineDead(RequestError):
    """The engine process has ended; every open request ends with this."""

    status = 503
    kind = "engine_error"
    code = "engine_dead"


class PoisonRequest(RequestError):
    """An engine has died twice while this request was computed alone."""

    status = 500
    kind = "engine_error"
    code = "poison_request"


class KernelAccessError(NeuronserveError):
    """A kernel accessed memory that none of its operands points to; `operand` is the nearest of them.

    Only kernels that were compiled in checked mode find out (server/kernels/checks.py).
    """

    def __init__(self, message: str, kernel: str, instruction: str, operand: str) -> None:
        super().__init__(message)
        self.kernel = kernel
        self.instruction = instruction
        self.operand = operand
