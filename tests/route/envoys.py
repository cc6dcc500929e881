"""A real Envoy, as a gateway in front of servers: a picker chooses, and Envoy tries the chosen ones in their order."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.api.serving import until

BINARY = Path(sys.prefix) / "envoy" / "bin" / "envoy"  # where `make test-slow` puts it
DESTINATION = "x-gateway-destination-endpoint"
_TYPES = "type.googleapis.com/envoy.extensions"
_HTTP, _LUA = f"{_TYPES}.filters.network.http_connection_manager.v3", f"{_TYPES}.filters.http.lua.v3.Lua"
_HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def _noted(phase: str, header: str, namespace: str, key: str) -> dict[str, Any]:
    """A filter that makes metadata of a header: so a test says what a gateway knows by itself."""
    code = f"""
function envoy_on_{phase}(handle)
  local found = handle:headers():get("{header}")
  if found then handle:streamInfo():dynamicMetadata():set("{namespace}", "{key}", found) end
end"""
    return _typed(header, _LUA, default_source_code={"inline_string": code})


def _typed(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": kind, **fields}}


def _cluster(name: str, addresses: Sequence[str], **more: Any) -> dict[str, Any]:
    ports = [{"address": {"socket_address": _socket(each)}} for each in addresses]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": each} for each in ports]}]}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"address": host, "port_value": int(port)}


def _pick() -> dict[str, Any]:
    both = {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
    duplex, send = "FULL_DUPLEX_STREAMED", ("request_header", "response_header", "request_trailer", "response_trailer")
    return _typed(
        "pick",
        f"{_TYPES}.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout="60s",
        metadata_options={"forwarding_namespaces": both, "receiving_namespaces": {"untyped": ["envoy.lb"]}},
        processing_mode={"request_body_mode": duplex, "response_body_mode": duplex}
        | {f"{each}_mode": "SEND" for each in send},
    )


def _listener(port: int, cluster: str, filters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    route = {
        "cluster": cluster,
        "timeout": "0s",
        "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 3},
    }
    served = {"header": {"key": "x-test-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route, "response_headers_to_add": [served]}],
    }
    router = _typed("router", f"{_TYPES}.filters.http.router.v3.Router")
    manager = _typed(
        "http",
        f"{_HTTP}.HttpConnectionManager",
        stat_prefix="http",
        route_config={"virtual_hosts": [host]},
        http_filters=[*filters, router],
    )
    address = {"socket_address": _socket(f"127.0.0.1:{port}")}
    return {"name": str(port), "address": address, "filter_chains": [{"filters": [manager]}]}


def _policy(kind: str, **fields: Any) -> dict[str, Any]:
    """A way to choose a server of a cluster."""
    config = _typed(kind, f"{_TYPES}.load_balancing_policies.{kind}", **fields)
    return {"policies": [{"typed_extension_config": config}]}


def _configuration(ports: Sequence[int], picker: str, is_secure: bool, servers: Sequence[str]) -> dict[str, Any]:
    protocols = {"@type": f"type.googleapis.com/{_HTTP2}", "explicit_http_config": {"http2_protocol_options": {}}}
    to_picker: dict[str, Any] = {"typed_extension_protocol_options": {_HTTP2: protocols}}
    if is_secure:
        to_picker["transport_socket"] = _typed("tls", f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext")
    by_header = [{"header": DESTINATION}]
    in_turn = _policy("round_robin.v3.RoundRobin")
    chosen = _policy("override_host.v3.OverrideHost", override_host_sources=by_header, fallback_policy=in_turn)
    subset = _noted("request", "x-test-subset", "envoy.lb.subset_hint", f"{DESTINATION}-subset")
    served = _noted("response", "x-test-served", "envoy.lb", f"{DESTINATION}-served")
    filters = [subset, _pick(), served]  # they see answers in the reverse order
    clusters = [
        _cluster("picker", [picker], **to_picker),
        _cluster("chosen", servers, load_balancing_policy=chosen),
        _cluster("any", servers),
    ]
    listeners = [_listener(ports[0], "chosen", filters), _listener(ports[1], "any", [])]
    return {"static_resources": {"listeners": listeners, "clusters": clusters}}


@contextlib.contextmanager
def running_envoy(picker_url: str, servers: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """Start Envoy; its URLs with the picker, and without. `servers`: addresses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [each.getsockname()[1] for each in sockets]
    scheme, _, picker = picker_url.partition("://")
    file = folder / "envoy.json"
    file.write_text(json.dumps(_configuration(ports, picker, scheme == "https", servers)))
    argv = [str(BINARY), "-c", str(file), "--concurrency", "1", "-l", "error", "--disable-hot-restart"]
    process = subprocess.Popen(argv)
    urls = f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{urls[0]}/health").status_code == 200
        return False

    try:
        until(answers)
        yield urls
    finally:
        process.terminate()
        process.wait(30)
