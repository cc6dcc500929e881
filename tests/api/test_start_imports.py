"""What the API's process imports before it serves, and what it leaves for later."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

from server.api.wire.model import WireModel, build_models

UNUSED = {  # by a server whose clients have asked for nothing yet
    "numba": "engines have it",
    "numpy": "engines have it",
    "rich": "for a terminal",
    "server.console.planning": "in a process of its own",
    "server.models.decoder": "engines have it",
    "server.planner.plan.search": "in a process of its own",
}
AS_SERVE_DOES = """
import json, sys
import server.settings.serve, server.link.handle, server.device.support_log
from server.api.http.deferred import import_fastapi
import_fastapi()
import server.api.server, server.console.mount
from fastapi.openapi.models import OpenAPI
from server.api.wire.chat import ChatRequest
built = [kind.__name__ for kind in (OpenAPI, ChatRequest) if kind.__pydantic_complete__]
print(json.dumps({"modules": list(sys.modules), "built": built}))
"""


def test_a_start_imports_nothing_that_nobody_has_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", AS_SERVE_DOES], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert not UNUSED.keys() & set(found["modules"])
    assert not found["built"]


def test_models_are_built_before_a_request_needs_them() -> None:
    class Body(WireModel):
        text: str

    assert not Body.__pydantic_complete__
    asyncio.run(build_models())
    assert Body.__pydantic_complete__
