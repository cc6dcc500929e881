"""/v1/files: the inputs and outputs of batches; they need --data-dir."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from ...errors import InvalidRequest, PayloadTooLarge, StorageFull
from ..errors import invalid_body
from ..http.body import content_type
from ..http.openapi import Responses, errors_of
from ..http.origin import CallerOf
from ..service import ServiceOf
from ..store.files import FileLabel, copy_of
from ..store.records import StoredFile
from ..wire.batches import DeletedFile, ExpiresAfter, FileList, FileObject

PATH = "/v1/files"
FORM_BYTES = 64 * 2**10  # of a form without its file
MAX_FIELDS = 8
MAX_FILENAME = 512
MAX_LISTED = 10_000
PURPOSES = ("batch",)
STORED = errors_of(400, 401, 404, 507)
_BINARY = {"type": "string", "format": "binary"}
_CONTENT: Responses = {200: {"content": {"application/octet-stream": {"schema": _BINARY}}}}
_FORM = {
    "type": "object",
    "properties": {"file": _BINARY, "purpose": {"enum": [*PURPOSES]}},
    "required": ["file", "purpose"],
    "maxProperties": 1 + MAX_FIELDS,
}
_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}}

router = APIRouter()


@router.post(PATH, responses=errors_of(400, 401, 415, 507), openapi_extra=_BODY)
async def upload_file(request: Request, service: ServiceOf, caller: CallerOf) -> FileObject:
    """Store a file of a form."""
    files = service.store.files
    content_type(request, "multipart/form-data")
    files.require_space(2 * int(request.headers.get("content-length", 0)))  # the form's parser keeps a copy meanwhile
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS) as form:
            upload, purpose, lifetime_s = _fields(form)
            if (upload.size or 0) > service.store.limits.max_file_bytes:
                most = service.store.limits.max_file_bytes
                raise PayloadTooLarge(f"The file has {upload.size} bytes; --max-file-bytes is {most}.", "file")
            name = (upload.filename or "file")[:MAX_FILENAME]
            return _shown(await files.create(copy_of(upload.file), FileLabel(name, purpose, lifetime_s, caller.name)))
    except HTTPException as error:
        raise InvalidRequest(f"The form cannot be read: {error.detail}") from error
    except OSError as error:
        raise StorageFull(f"The server cannot keep the form: {error.strerror}.") from error


@router.get(PATH, responses=STORED)
async def list_files(
    service: ServiceOf,
    caller: CallerOf,
    purpose: str | None = None,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
    order: Literal["asc", "desc"] = "desc",
) -> FileList:
    """Files that have not expired."""
    found = await service.store.files.page(caller.sees, purpose, after, limit + 1, order == "desc")
    data = [_shown(each) for each in found[:limit]]
    ends = {"first_id": data[0].id, "last_id": data[-1].id} if data else {}
    return FileList(data=data, has_more=len(found) > limit, **ends)


@router.get(PATH + "/{file_id}", responses=STORED)
async def get_file(file_id: str, service: ServiceOf, caller: CallerOf) -> FileObject:
    """The record of a file, without its content."""
    return _shown(await service.store.files.get(file_id, caller.sees))


@router.get(
    PATH + "/{file_id}/content",
    response_class=FileResponse,
    responses=_CONTENT | STORED,
)
async def get_content(file_id: str, service: ServiceOf, caller: CallerOf) -> Response:
    """The content of a file."""
    files = service.store.files
    found = await files.get(file_id, caller.sees)
    return FileResponse(files.path(found.id), media_type="application/octet-stream", filename=found.filename)


@router.delete(PATH + "/{file_id}", responses=STORED)
async def delete_file(file_id: str, service: ServiceOf, caller: CallerOf) -> DeletedFile:
    """Delete a file, unless it is the input of a batch that has not ended."""
    await service.store.files.delete(file_id, caller.sees)
    return DeletedFile(id=file_id)


def _fields(form: FormData) -> tuple[UploadFile, str, int | None]:
    """Return the file of a form, its purpose and its lifetime. Raises InvalidRequest."""
    upload, purpose = form.get("file"), form.get("purpose")
    if not isinstance(upload, UploadFile):
        raise InvalidRequest("file is required, as a file of the form.", "file")
    if purpose not in PURPOSES:
        raise InvalidRequest(f"purpose is {str(purpose)[:80]!r}; this server takes {', '.join(PURPOSES)}.", "purpose")
    given = {name: form.get(f"expires_after[{name}]") for name in ("anchor", "seconds")}
    if given == {"anchor": None, "seconds": None}:
        return upload, purpose, None
    try:
        expires_after = ExpiresAfter.model_validate(given, strict=False)
    except ValidationError as error:
        raise InvalidRequest(invalid_body(error).message, "expires_after") from error
    return upload, purpose, expires_after.seconds


def _shown(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.num_bytes,
        created_at=file.created_at,
        expires_at=file.expires_at,
        filename=file.filename,
        purpose=file.purpose,
    )
