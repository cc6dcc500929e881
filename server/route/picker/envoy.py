"""Messages of Envoy's external processing (ext_proc v3), with the fields that a picker reads or writes.

The package that has all of Envoy's messages, xds-protos, also installs files of OpenTelemetry in versions of its own,
over those that tracing needs. Numbers are those of envoy/service/ext_proc/v3/external_processor.proto and the files
that it imports; fields that are not listed are skipped when a message is read.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PACKAGE, STRUCT = "neuronserve.ext_proc", "google.protobuf.Struct"
OVERWRITE_IF_EXISTS_OR_ADD = 2  # HeaderValueOption.HeaderAppendAction
BODY_MODES = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED", "GRPC")
NONE, FULL_DUPLEX_STREAMED = BODY_MODES.index("NONE"), BODY_MODES.index("FULL_DUPLEX_STREAMED")

# name of a message -> its fields as number:name:type; "*" = repeated, "|" = of the message's only oneof
_MESSAGES = {
    "HeaderValue": "1:key:string 2:value:string 3:raw_value:bytes",
    "HeaderMap": "1:headers:HeaderValue*",
    "HeaderValueOption": "1:header:HeaderValue 3:append_action:int32",
    "HttpHeaders": "1:headers:HeaderMap 3:end_of_stream:bool",
    "HttpBody": "1:body:bytes 2:end_of_stream:bool",
    "HttpTrailers": "1:trailers:HeaderMap",
    "FilterMetadata": f"1:key:string 2:value:{STRUCT}",
    "Metadata": "1:filter_metadata:FilterMetadata*",
    "ProtocolConfiguration": "1:request_body_mode:int32 2:response_body_mode:int32",
    "ProcessingRequest": "2:request_headers:HttpHeaders| 3:response_headers:HttpHeaders| 4:request_body:HttpBody| "
    "5:response_body:HttpBody| 6:request_trailers:HttpTrailers| 7:response_trailers:HttpTrailers| "
    "8:metadata_context:Metadata 11:protocol_config:ProtocolConfiguration",
    "HeaderMutation": "1:set_headers:HeaderValueOption*",
    "StreamedBodyResponse": "1:body:bytes 2:end_of_stream:bool",
    "BodyMutation": "3:streamed_response:StreamedBodyResponse|",
    "CommonResponse": "2:header_mutation:HeaderMutation 3:body_mutation:BodyMutation 5:clear_route_cache:bool",
    "HeadersResponse": "1:response:CommonResponse",
    "BodyResponse": "1:response:CommonResponse",
    "TrailersResponse": "1:header_mutation:HeaderMutation",
    "HttpStatus": "1:code:int32",
    "ImmediateResponse": "1:status:HttpStatus 2:headers:HeaderMutation 3:body:bytes 5:details:string",
    "ProcessingResponse": "1:request_headers:HeadersResponse| 2:response_headers:HeadersResponse| "
    "3:request_body:BodyResponse| 4:response_body:BodyResponse| 5:request_trailers:TrailersResponse| "
    f"6:response_trailers:TrailersResponse| 7:immediate_response:ImmediateResponse| 8:dynamic_metadata:{STRUCT}",
}
_ONEOF = {"ProcessingRequest": "request", "ProcessingResponse": "response", "BodyMutation": "mutation"}
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _FIELD.TYPE_STRING, "bytes": _FIELD.TYPE_BYTES, "bool": _FIELD.TYPE_BOOL}
_SCALARS["int32"] = _FIELD.TYPE_INT32  # enums too: they are the same on the wire


def _made() -> dict[str, Any]:
    """Return the classes of the messages by name."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    file.dependency.append(struct_pb2.DESCRIPTOR.name)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONEOF:
            message.oneof_decl.add(name=_ONEOF[name])
        for field in fields.split():
            number, label, kind = field.split(":")
            repeated = _FIELD.LABEL_REPEATED if "*" in kind else _FIELD.LABEL_OPTIONAL
            added = message.field.add(name=label, number=int(number), label=repeated)
            plain = kind.rstrip("*|")
            added.type = _SCALARS.get(plain, _FIELD.TYPE_MESSAGE)
            if plain not in _SCALARS:
                added.type_name = f".{plain}" if plain == STRUCT else f".{PACKAGE}.{plain}"
            if "|" in kind:
                added.oneof_index = 0
    pool.Add(file)
    names = (f"{PACKAGE}.{name}" for name in ("ProcessingRequest", "ProcessingResponse"))
    return {
        name.rpartition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names
    }


_CLASSES = _made()
ProcessingRequest: Any = _CLASSES["ProcessingRequest"]
ProcessingResponse: Any = _CLASSES["ProcessingResponse"]
