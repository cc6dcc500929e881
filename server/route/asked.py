"""One request of a client, and the messages that ask replicas for its answer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.types import Scope

from ..api.http.middleware import header
from ..api.http.objectives import SESSION_HEADER
from ..api.http.resume import HEADER, Resume, encoded
from ..api.keys.guard import ADMIN, is_local, scopes_of
from .address import Address
from .events import Events
from .prompt import Prompt, prompt_of

# Paths of things that one replica has stored. Their requests go to the first replica, then to those that may have it.
STORED = ("/v1/files", "/v1/batches", "/v1/conversations", "/v1/responses/", "/v1/messages/batches", "/v1/uploads")
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers of one connection, those that are set here, and those that the router has checked for all replicas.
_OWN = (b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade")
DROPPED = frozenset({*_OWN, b"proxy-connection", b"expect", b"origin", b"sec-fetch-site", b"x-request-id", HEADER})


@dataclass(slots=True)
class Asked:
    """A request whose body was read. Each replica that is asked gets the same id and the same `Resume.key`."""

    method: str
    path: str
    target: bytes  # path and query as the client wrote them
    headers: list[tuple[bytes, bytes]]
    body: bytes
    request_id: str
    session: str = ""
    prompt: Prompt = field(default_factory=Prompt)
    only: str = ""  # address of the one replica that can answer; "" = each can
    resume: Resume = field(default_factory=lambda: Resume(uuid.uuid4().hex, int(time.time())))

    @property
    def is_stored(self) -> bool:
        """Whether it is about things that a replica stores."""
        return self.path.startswith(STORED)

    @property
    def is_for_all(self) -> bool:
        """Whether each replica gets it: an operator's command."""
        return self.method == "POST" and scopes_of(self.path) == ADMIN

    @property
    def is_repeatable(self) -> bool:
        """Whether another replica may be asked after one that may have begun: nothing would be stored twice."""
        return self.method in SAFE or not (self.is_stored or self.is_for_all)

    def message(self, address: Address, events: Events) -> list[bytes]:
        """Return the request for a replica, which continues `events`."""
        head = [b"%b %b HTTP/1.1\r\nhost: %b" % (self.method.encode(), self.target, address.host_header)]
        head += [b"%b: %b" % pair for pair in self.headers]
        parts = [self.body]
        if self.is_repeatable and self.method == "POST":
            resume = self.resume
            if events.fingerprint:
                journal = events.journal
                state = events.fingerprint, len(journal), events.num_events
                resume, parts = Resume(resume.key, resume.created, *state), [journal, self.body]
            head.append(b"%b: %b" % (HEADER, encoded(resume)))
        if any(parts) or self.method not in SAFE:
            head.append(b"content-length: %d" % sum(map(len, parts)))
        return [b"\r\n".join(head), b"\r\n\r\n", *parts]


def asked(scope: Scope, body: bytes) -> Asked:
    """Return the request of `scope`, with its body."""
    request_id = scope["state"]["request_id"]
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    headers = [*_passed(scope["headers"]), (b"x-request-id", request_id.encode())]
    # Only operators' commands ask whether a caller is local, which takes milliseconds to find out.
    if scopes_of(scope["path"]) != ADMIN or not is_local(scope):
        seen = header(scope, b"x-forwarded-for")
        client = str((scope.get("client") or ("unknown",))[0]).encode()
        headers = [pair for pair in headers if pair[0] != b"x-forwarded-for"]
        headers.append((b"x-forwarded-for", client if seen is None else b"%b, %b" % (seen, client)))
    prompt = prompt_of(body) if scope["method"] == "POST" else Prompt()
    session = (header(scope, SESSION_HEADER.encode()) or b"").decode("latin-1")
    return Asked(scope["method"], scope["path"], target, headers, body, request_id, session, prompt)


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    return (pair for pair in headers if pair[0].lower() not in DROPPED)


def answered(headers: Iterable[tuple[bytes, bytes]], length: int | None) -> list[tuple[bytes, bytes]]:
    """Return the headers of a replica's answer for the client; `length` of its body, None in parts."""
    kept = [pair for pair in _passed(headers) if pair[0] not in (b"date", b"server")]
    return kept if length is None else [*kept, (b"content-length", b"%d" % length)]
