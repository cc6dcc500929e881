"""GET /server_info, POST /reset_prefix_cache, /start_profile and /stop_profile, under vLLM's names, and
/admin/restart-engine and /admin/abort-request: for operators.

They require an API key where one is set, those under /admin an operator's (--admin-api-key). A profile is a trace of
the emulated device for Perfetto.
"""

from typing import Annotated

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from ... import __version__
from ...errors import Conflict, Unavailable
from ...link.messages import StartTrace, StopTrace, TraceCommand, TraceReply
from ...text.parsers.call_formats import ToolParserName
from ...text.parsers.formats import ReasoningParserName
from ..config import MAX_ID_CHARS, ContextOverflow
from ..http.body import BodyOf
from ..http.openapi import OF_BODIES, documented, errors_of
from ..service import Service, ServiceOf
from ..tools.plan import chosen_parsers
from ..wire.model import WireModel

router = APIRouter()


class Reset(WireModel):
    success: bool


class AbortRequest(WireModel):
    """Request to end, by its id."""

    model_config = ConfigDict(extra="forbid")

    request_id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)]  # the X-Request-Id of its answer


class Aborted(WireModel):
    aborted: int  # requests


class Restarting(WireModel):
    restarting: int  # engines


class ServerInfo(WireModel):
    """Limits and switches of this server; what it serves is in /inventory."""

    model_config = ConfigDict(protected_namespaces=())

    version: str
    model_names: list[str]
    max_model_len: int
    max_num_queued_reqs: int
    max_body_bytes: int
    max_logprobs: int
    context_overflow: ContextOverflow
    enable_auto_tool_choice: bool
    tool_call_parser: ToolParserName  # in use: as configured, or as the chat template implies
    reasoning_parser: ReasoningParserName
    trust_request_chat_template: bool
    shutdown_timeout_s: float


class Started(WireModel):
    recording: bool


class Trace(WireModel):
    """The trace of one engine."""

    file: str  # on the server's host
    steps: int
    events: int
    truncated: bool  # there were more events than fit: the first are kept


class Stopped(WireModel):
    traces: list[Trace]  # one for each engine, by rank


@router.post("/reset_prefix_cache", responses=errors_of(401, 503))
async def reset_prefix_cache(service: ServiceOf) -> Reset:
    """Empty the prefix cache; requests after this answer find no earlier prefix."""
    service.reset_prefix_cache()
    return Reset(success=True)


@router.post("/admin/restart-engine", status_code=202, responses=errors_of(401, 503))
async def restart_engine(service: ServiceOf) -> Restarting:
    """Restart each engine, one after the other, with the model's current files. No open request is lost."""
    service.restart_engines()
    return Restarting(restarting=len(service.engine.clients))


@router.post("/admin/abort-request", responses=errors_of(*OF_BODIES, 401), openapi_extra=documented(AbortRequest))
async def abort_request(body: BodyOf[AbortRequest], service: ServiceOf) -> Aborted:
    """End open requests with this id by an error; `aborted` is 0 when there are none."""
    request_id = body.request_id
    lives = [life for life in service.model.requests.open_requests if life.origin.request_id == request_id]
    sequence_ids = {sequence_id for life in lives for sequence_id in life.sequences}
    service.engine.abort_all(Unavailable("An operator has ended this request.", code="aborted"), sequence_ids)
    return Aborted(aborted=len(lives))


@router.get("/server_info", responses=errors_of(401, 503))
async def server_info(service: ServiceOf) -> ServerInfo:
    """Limits and switches that clients may need; no keys and no paths of the host."""
    config, info = service.config, service.model.info
    shared = {name: getattr(config, name) for name in ServerInfo.model_fields if hasattr(config, name)}
    template = service.model.template
    tools, reasoning = chosen_parsers(config, template.source if template else None)
    limits: dict[str, object] = {
        "max_model_len": info.max_model_len,
        "max_num_queued_reqs": info.max_num_queued_reqs,
    }
    limits |= {"tool_call_parser": tools, "reasoning_parser": reasoning}
    return ServerInfo(version=__version__, **(shared | limits | {"model_names": list(config.model_names)}))


@router.post("/start_profile", responses=errors_of(401, 409, 503))
async def start_profile(service: ServiceOf) -> Started:
    """Record every step from now on."""
    await _send(service, StartTrace())
    return Started(recording=True)


@router.post("/stop_profile", responses=errors_of(401, 409, 503))
async def stop_profile(service: ServiceOf) -> Stopped:
    """Stop recording; the answer names the files, which are complete."""
    return Stopped(traces=[_trace(reply) for reply in await _send(service, StopTrace())])


def _trace(reply: TraceReply) -> Trace:
    return Trace(file=reply.file or "", steps=reply.num_steps, events=reply.num_events, truncated=reply.is_truncated)


async def _send(service: Service, command: TraceCommand) -> list[TraceReply]:
    """Return the engines' replies to `command`. Raises Conflict when one of them refuses."""
    if not service.config.has_device_traces:
        raise Conflict("Tracing is off: start the server with --trace-dir DIRECTORY.", code="profile_disabled")
    _ = service.model  # raises while it loads, drains or is dead
    replies = await service.engine.trace(command)
    errors = [reply.error for reply in replies if reply.error is not None]
    if errors:
        raise Conflict(f"{errors[0][0].upper()}{errors[0][1:]}.", code="profile_error")
    return replies
