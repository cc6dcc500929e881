"""Imports of a server's processes before it serves, and imports that they leave for later."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from neuronserve.server.api.wire.model import WireModel, build_models

UNUSED = {  # by a server whose clients have asked for nothing yet
    "jinja2": "the process that renders templates has it",
    "numba": "engines have it",
    "numpy": "engines have it",
    "rich": "for a terminal",
    "neuronserve.console.planning": "in a process of its own",
    "neuronserve.server.models.decoder": "engines have it",
    "neuronserve.planner.plan.search": "in a process of its own",
    "yaml": "for files that nobody has named",
}
AS_SERVE_DOES = """
import json, sys
import neuronserve.cli.serve, neuronserve.server.link.handle, neuronserve.server.device.support
from neuronserve.server.api.http.deferred import import_fastapi
import_fastapi()
import neuronserve.server.api.server, neuronserve.console.addition, neuronserve.testkit.faults.injector
from fastapi.openapi.models import OpenAPI, Operation, Schema
from neuronserve.server.api.wire.model import WireModel
kinds = [OpenAPI, Operation, Schema, WireModel]
for kind in kinds:
    kinds += kind.__subclasses__()
built = [kind.__name__ for kind in kinds if kind.__pydantic_complete__]
print(json.dumps({"modules": list(sys.modules), "built": built}))
"""


def test_a_start_imports_nothing_that_nobody_has_asked_for() -> None:
    run = subprocess.run([sys.executable, "-c", AS_SERVE_DOES], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert not UNUSED.keys() & set(found["modules"])
    assert not found["built"]


AS_ENGINES_DO = """
import json, sys
import neuronserve.server.engine.preload
print(json.dumps([name for name in ("scipy", "yaml") if name in sys.modules]))
import scipy, yaml
"""


def test_engines_import_nothing_of_what_numba_looks_for(tmp_path: Path) -> None:
    """Except where there is a file to read with it, of Numba's own configuration."""

    def found() -> list[str]:
        command = [sys.executable, "-c", AS_ENGINES_DO]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return list(json.loads(run.stdout))

    assert found() == []
    (tmp_path / ".numba_config.yaml").write_text("warnings: 0\n")
    assert found() == ["yaml"]


def test_models_are_built_before_a_request_needs_them() -> None:
    class Body(WireModel):
        text: str

    assert not Body.__pydantic_complete__
    asyncio.run(build_models())
    assert Body.__pydantic_complete__
