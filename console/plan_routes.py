"""The planner over HTTP: plans of one instance after the other, and files that deploy a configuration."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Response
from pydantic import ConfigDict, Field

from ..planner.plan.bounds import MAX_BATCH, MAX_RATE, MAX_TOKENS, MIN_RATE
from ..server.api.http.body import body_of
from ..server.api.http.event_stream import EventStream, frame
from ..server.api.wire.model import WireModel
from ..server.device.prices import PriceBasis
from ..server.errors import InvalidRequest, StartError
from .plan_process import PlanProcess, Work
from .question import Defaults, InForce, Question, Row

Traffic = Callable[[], Sequence[tuple[float, int, int]]]
Limit = Annotated[float | None, Field(gt=0, le=1e9, allow_inf_nan=False)]
MAX_NAMES = 64  # instances of one question
MAX_NAME = 200


class PlanBody(WireModel):
    """The question, with the flags of `neuronserve plan`; times in milliseconds."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(max_length=MAX_NAME)] = ""  # "": the served model
    input_len: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 1024
    output_len: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 256
    request_rate: Annotated[float, Field(ge=MIN_RATE, le=MAX_RATE)] = 1.0
    ttft_ms: Limit = None
    tpot_ms: Limit = None
    ttft_p95_ms: Limit = None
    tpot_p95_ms: Limit = None
    budget: Limit = None
    quantization: list[Literal["bfloat16", "int8", "fp8"]] = Field(["bfloat16"], min_length=1, max_length=3)
    # [] = all, in their order.
    device: list[Annotated[str, Field(max_length=MAX_NAME)]] = Field([], max_length=MAX_NAMES)
    price_basis: PriceBasis = "on_demand"
    uses_traffic: bool = False  # plan for the requests that the server has seen


class RowName(WireModel):
    """Name of a configuration."""

    model_config = ConfigDict(extra="forbid")

    device: Annotated[str, Field(max_length=MAX_NAME)]
    tp: Annotated[int, Field(ge=1, le=1024)]
    pp: Annotated[int, Field(ge=1, le=1024)] = 1
    dtype: Literal["bfloat16", "int8", "fp8"]
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)]


class RowBody(PlanBody):
    """A question, and one row of its answer."""

    row: RowName


class PlanPage:
    """Answers the questions of pages in a separate process."""

    def __init__(self, in_force: InForce, defaults: Defaults, traffic: Traffic = tuple) -> None:
        self.process = PlanProcess(in_force)
        self._defaults, self._traffic = defaults, traffic

    async def choices(self) -> dict[str, Any]:
        """Return the choices of the page's controls."""
        return {"default_model": self._defaults.name, **await self.process.call("choices")}

    async def parts(self, body: PlanBody) -> AsyncGenerator[bytes, None]:
        """Yield a frame for each instance, in the order of the question. Raises InvalidRequest."""
        question = await self._question(body)
        devices = body.device or [each["name"] for each in (await self.process.call("choices"))["devices"]]
        for device in devices:
            yield frame(msgspec.json.encode(await self._ask("plan_part", question, device)))

    async def files(self, body: RowBody) -> bytes:
        """Return the archive of a configuration's files. Raises InvalidRequest."""
        found: bytes = await self._ask("files_of", await self._question(body), Row(**body.row.model_dump()))
        return found

    async def _question(self, body: PlanBody) -> Question:
        if body.model:
            await self._ask("require_public", body.model)
        lengths = tuple(self._traffic()) if body.uses_traffic else ()
        if body.uses_traffic and len(lengths) < 2:
            raise InvalidRequest("The server has not seen two requests yet, so there is no traffic.", "uses_traffic")
        return Question(_options(body, body.model or self._defaults.path), lengths)

    async def _ask(self, work: Work, *args: Any) -> Any:
        try:
            return await self.process.call(work, *args)
        except StartError as error:
            raise InvalidRequest(str(error)) from error


def _options(body: PlanBody, model: str) -> dict[str, Any]:
    """Return the fields of PlanOptions."""
    return dict(
        model=model,
        input_tokens=body.input_len,
        output_tokens=body.output_len,
        request_rate=body.request_rate,
        ttft_s=_seconds(body.ttft_ms),
        tpot_s=_seconds(body.tpot_ms),
        ttft_p95_s=_seconds(body.ttft_p95_ms),
        tpot_p95_s=_seconds(body.tpot_p95_ms),
        usd_per_hour=body.budget,
        dtypes=tuple(body.quantization),
        price_basis=body.price_basis,
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def plan_router(page: PlanPage) -> APIRouter:
    """Return the routes GET /console/choices, POST /console/plan and /console/plan/files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/console/choices")
    async def get_choices() -> dict[str, Any]:
        """Instances and models that a plan may name."""
        return await page.choices()

    @router.post("/console/plan")
    async def plan(body: Annotated[PlanBody, Depends(body_of(PlanBody))]) -> EventStream:
        """Configurations of each instance, as soon as it is planned."""
        return EventStream(page.parts(body))

    @router.post("/console/plan/files")
    async def files(body: Annotated[RowBody, Depends(body_of(RowBody))]) -> Response:
        """The files that deploy a configuration, as a ZIP archive."""
        return Response(await page.files(body), media_type="application/zip")

    return router
