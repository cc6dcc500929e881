"""Messages of Envoy's external processing, in the form of the endpoint picker protocol 1.0.0. No decisions.

The protocol: https://github.com/kubernetes-sigs/gateway-api-inference-extension, docs/proposals/004.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...api.errors import error_response
from ...errors import RequestError
from .envoy import OVERWRITE_IF_EXISTS_OR_ADD, ProcessingResponse

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
DESTINATION = "x-gateway-destination-endpoint"
SERVED, SUBSET = f"{DESTINATION}-served", f"{DESTINATION}-subset"
NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
CHUNK_BYTES = 62_000  # Envoy refuses much larger parts of a streamed body


def headers_of(headers: Any) -> dict[str, str]:
    """Return the headers of HttpHeaders; of a name that repeats, the last."""
    return {each.key: each.raw_value.decode("latin-1") or each.value for each in headers.headers.headers}


def endpoints(request: Any, namespace: str, key: str) -> list[str] | None:
    """Return addresses in the gateway's metadata, a list or text with commas; None where it has no such key."""
    all_found = (each.value for each in request.metadata_context.filter_metadata if each.key == namespace)
    found: Any = next(all_found, {})
    if key not in found:
        return None
    return [str(each).strip() for each in (found[key].split(",") if isinstance(found[key], str) else found[key])]


def destination(addresses: Sequence[str]) -> Any:
    """Return the answer to the request's headers: addresses in the order in which to try them."""
    answer, text = ProcessingResponse(), ",".join(addresses)
    common = answer.request_headers.response
    common.clear_route_cache = True
    _set_header(common.header_mutation, DESTINATION, text.encode())
    answer.dynamic_metadata.update({NAMESPACE: {DESTINATION: text}})
    return answer


def unchanged(kind: str) -> Any:
    """Return the answer to headers or trailers of `kind`, such as "response_headers", that stay as they are."""
    answer = ProcessingResponse()
    getattr(answer, kind).SetInParent()
    return answer


def streamed(kind: str, body: bytes, is_end: bool) -> Iterator[Any]:
    """Yield a body of `kind`, or a part of it, in chunks."""
    for begin in range(0, len(body) or 1, CHUNK_BYTES):
        answer = ProcessingResponse()
        chunk = getattr(answer, kind).response.body_mutation.streamed_response
        chunk.body, chunk.end_of_stream = body[begin : begin + CHUNK_BYTES], is_end and begin + CHUNK_BYTES >= len(body)
        yield answer


def refusal(error: RequestError, path: str) -> Any:
    """Return the answer that the gateway gives the client at once, in the format of the API that has `path`."""
    answer, written = ProcessingResponse(), error_response(error, path)
    at_once = answer.immediate_response
    at_once.status.code, at_once.body, at_once.details = error.status, bytes(written.body), error.code or error.kind
    for name, value in written.raw_headers:
        if name not in (b"content-length", b"connection"):  # the gateway sets them itself
            _set_header(at_once.headers, name.decode(), value)
    return answer


def _set_header(mutation: Any, name: str, value: bytes) -> None:
    """Set a header in place of what a client may have sent under its name."""
    option = mutation.set_headers.add(append_action=OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key, option.header.raw_value = name, value
