"""Subcommands for tests of clients: `record`, `replay` and `survive`. Each has its own imports."""

from __future__ import annotations

from neuronserve.cli.call import Call


def record(call: Call) -> None:
    """Run a proxy that records the answers of an endpoint."""
    from neuronserve.testkit.settings.cassette import RecordSettings

    settings = call.settings(RecordSettings)
    from neuronserve.server.settings.base import slice_of
    from neuronserve.testkit.cassette.command import Address, run_record

    run_record(settings.upstream, settings.cassette, settings.append, slice_of(Address, settings))


def replay(call: Call) -> None:
    """Run a server that answers from a recording."""
    from neuronserve.testkit.settings.cassette import ReplaySettings

    settings = call.settings(ReplaySettings)
    from neuronserve.server.settings.base import slice_of
    from neuronserve.testkit.cassette.command import Address, run_replay

    run_replay(settings.cassette, settings.timings, settings.fault_config, slice_of(Address, settings))


def survive(call: Call) -> int:
    """Run a client's command through all faults. The command stands behind `--`."""
    from dataclasses import replace

    from neuronserve.testkit.settings.survive import SurviveSettings

    own, command = call.divided
    settings = replace(call, argv=own).settings(SurviveSettings)
    from neuronserve.testkit.survival.command import run_survive

    return run_survive(settings.plan(command), settings.json_file)
