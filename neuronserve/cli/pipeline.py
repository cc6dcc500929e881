"""The subcommand `stage`, with its own imports."""

from __future__ import annotations

from pathlib import Path

from neuronserve.cli.call import Call


def stage(call: Call) -> None:
    """Compute a pipeline stage for servers on other hosts."""
    from neuronserve.server.host.fork_server import start_fork_server
    from neuronserve.server.settings.pipeline import StageSettings, read_key

    settings = call.settings(StageSettings)
    start_fork_server()
    from neuronserve.server.checkpoint.hub import resolve_model
    from neuronserve.server.engine.pipeline.command import StageHost
    from neuronserve.server.link.stage_ends import listen
    from neuronserve.server.settings.logs import log_to_stderr

    log_to_stderr("info")
    key = read_key(settings.pipeline_key_file)
    model: Path = resolve_model(settings.model, None, settings.gguf_cache)
    with listen(settings.listen, key) as listener:
        print(f"ready: a stage of {model} at {settings.listen}", flush=True)
        StageHost(model, settings.kernel_cache, key).serve(listener)
