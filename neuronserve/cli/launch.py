"""Subcommand `launch`."""

from __future__ import annotations

from neuronserve.cli.call import Call


def launch(call: Call) -> None:
    """Start a coding agent on a running server. What stands behind `--` is the agent's."""
    from dataclasses import replace

    from neuronserve.server.chat.agents import launch_of, start
    from neuronserve.server.chat.endpoint import ChatEndpoint
    from neuronserve.server.settings.chat import LaunchSettings
    from neuronserve.server.settings.sources import process_environment

    own, args = call.divided
    settings = replace(call, argv=own).settings(LaunchSettings)
    endpoint = ChatEndpoint(settings.url, settings.api_key, timeout_s=30)
    found = launch_of(settings.agent, endpoint, settings.model, settings.api_key, args)
    if settings.dry_run:
        print(found.text)
    else:
        start(found, process_environment())
