"""Functions of the subcommands; each imports its modules when it is called."""

from __future__ import annotations

import gc
import sys
from functools import partial
from typing import TYPE_CHECKING

from neuronserve.cli.call import Call, Parser

if TYPE_CHECKING:
    from pathlib import Path

    from neuronserve.server.settings.model import ModelSettings


def serve(call: Call) -> None:
    """Run the server. The engines' processes load the model while this process imports the API."""
    from neuronserve.cli.ending import leave_when_interrupted
    from neuronserve.server.host.fork_server import start_fork_server

    leave_when_interrupted()
    gc.disable()  # until the server has loaded: saves a tenth of the import time
    if not {"-h", "--help", "--help-all"}.intersection(call.argv):
        start_fork_server()
    from neuronserve.cli.real_device import check_serve
    from neuronserve.cli.serve import require_files, serve_alone, serve_settings

    settings = call.settings(serve_settings())
    settings.require_price()
    require_files(settings)
    if settings.models or settings.multi_model_endpoint:
        from neuronserve.cli.several_models import serve_models

        serve_models(settings, call, lambda own: check_serve(own, partial(_model_path, own)))
        return
    model_path = check_serve(settings, partial(_model_path, settings))
    if settings.distributed == "ray":
        from neuronserve.cli.ray import serve_on_ray

        serve_on_ray(settings, model_path)
    elif settings.replicas > 1:
        from neuronserve.cli.replicas import serve_replicas

        serve_replicas(settings, model_path, call.engine)
    else:
        serve_alone(settings, model_path, call.engine)


def run_batch(call: Call) -> int:
    """Answer a file of requests into another file. The input is checked before a model is loaded."""
    from neuronserve.server.api.batch import command
    from neuronserve.server.link.handle import start_engines
    from neuronserve.server.settings.run_batch import RunBatchSettings

    settings = call.settings(RunBatchSettings)
    settings.require_price()
    model_path = _model_path(settings)
    config = settings.api_config(model_path)
    total = command.check_input(settings.input_file, config)
    engines = start_engines(settings.engine_configs(model_path), call.engine, settings.engine_mode)
    try:
        return command.run_batch(config, engines, settings.input_file, settings.output_file, total)
    finally:
        for process in engines:
            process.close()


def bench_latency(call: Call) -> None:
    """Measure prefill and decode in this process, and print a table."""
    from neuronserve.server.settings.bench import LatencySettings

    settings = call.settings(LatencySettings)
    from neuronserve.server.bench.speed_report import run_latency
    from neuronserve.server.kernels.isa.target import use_target

    use_target(settings.isa)
    run_latency(settings.engine_config(_model_path(settings)), settings.workloads, settings.options)


def bench_throughput(call: Call) -> None:
    """Measure many sequences at once in this process, and print a table."""
    from neuronserve.server.settings.bench import ThroughputSettings

    settings = call.settings(ThroughputSettings)
    from neuronserve.server.bench.speed_report import run_throughput
    from neuronserve.server.kernels.isa.target import use_target

    use_target(settings.isa)
    run_throughput(settings.engine_config(_model_path(settings)), settings.workloads, settings.options)


def bench_accuracy(call: Call) -> None:
    """Measure the effect of each weight format on the model's answers."""
    from neuronserve.server.settings.bench import AccuracySettings

    settings = call.settings(AccuracySettings)
    from neuronserve.server.bench.accuracy_report import run_accuracy
    from neuronserve.server.kernels.isa.target import use_target

    use_target(settings.isa)
    run_accuracy(settings.engine_config(_model_path(settings)), settings.options)


def bench_serve(call: Call) -> int:
    """Run the load tests, a separate program with its own flags."""
    from neuronserve.loadtests.cli import main as load_test

    return load_test(list(call.argv))


def compile_ahead(call: Call) -> None:
    """Quantize and pack a model into a directory that `serve` starts from; print the graphs of the accelerator."""
    from neuronserve.server.settings.compile import CompileSettings

    settings = call.settings(CompileSettings)
    from rich.console import Console

    from neuronserve.cli.real_device import check_compile
    from neuronserve.server.engine.load.artifact_writer import compile_model
    from neuronserve.server.engine.load.compile_report import render
    from neuronserve.server.settings.base import write_report

    say = partial(print, file=sys.stderr)
    model_path = check_compile(settings, partial(_model_path, settings), say)
    report = compile_model(settings.compile_config(model_path), say)
    Console().print(render(report))
    write_report(settings.json_file, report.as_json())


def embed(call: Call) -> None:
    """Print the vectors of texts, or the scores of their classes."""
    from neuronserve.server.engine.encode.command import run_embed
    from neuronserve.server.settings.embed import EmbedSettings

    settings = call.settings(EmbedSettings)
    run_embed(settings.encode_config(_model_path(settings)), settings.options)


def models(call: Call) -> int:
    """List supported models, or check one checkpoint and find where it fits."""
    from neuronserve.cli.models import run_models
    from neuronserve.server.settings.models import ModelsSettings

    settings = call.settings(ModelsSettings)
    return run_models(settings.model or None, settings.device, settings.gguf_cache)


def calibrate(call: Call) -> None:
    """Fit the cost model to published rows, or compare the stored fit with rows; print tables, write JSON if asked."""
    from neuronserve.planner.calibrate.command import Tables, run_calibration
    from neuronserve.planner.settings.calibrate import CalibrateSettings
    from neuronserve.server.settings.base import slice_of

    settings = call.settings(CalibrateSettings)
    run_calibration(slice_of(Tables, settings), settings.json_file, settings.stack)


def validate(call: Call) -> None:
    """Hold the calibration in force against published rows; print, and write the page and the report if asked."""
    from neuronserve.planner.settings.validate import ValidateSettings
    from neuronserve.planner.validate.command import run_validation

    settings = call.settings(ValidateSettings)
    run_validation(settings.data, settings.encoders, settings.outputs)


def observe(call: Call) -> None:
    """Fit the cost model to one endpoint, from a probe or from reports of earlier load tests."""
    from neuronserve.loadtests.probe import ProbeShape, probe
    from neuronserve.planner.observe.command import run_observe
    from neuronserve.planner.settings.observe import ObserveSettings
    from neuronserve.server.settings.base import slice_of

    settings = call.settings(ObserveSettings)
    label, deployment = settings.label, settings.deployment
    endpoint = settings.base_url, settings.served_model_name, settings.api_key
    runs = settings.recorded or probe(*endpoint, slice_of(ProbeShape, settings))
    run_observe(label, runs, deployment, settings.output)


def plan(call: Call) -> int:
    """Find instance, parallel degree, dtype and batch that meet the limits, with their cost."""
    gc.disable()  # saves a tenth of the time: what is left over is smaller than what is kept
    from neuronserve.planner.command import run_encoder_plan, run_plan
    from neuronserve.planner.settings.plan import PlanSettings

    settings = call.settings(PlanSettings)
    if settings.serve:
        from neuronserve.console.alone import run_planner
        from neuronserve.console.question import InForce

        gc.enable()
        in_force = InForce(settings.catalog_config, settings.calibration_file)
        run_planner(in_force, settings.model, settings.host, settings.port)
        return 0
    if settings.is_encoder:
        return run_encoder_plan(settings.encoder_options, settings.json_file, settings.view)
    trace = settings.recorded
    files = settings.json_file, settings.picture
    return run_plan(settings.options(trace), *files, settings.view, trace, settings.emission)


def simulate(call: Call) -> None:
    """Serve a workload on modelled instances in virtual time."""
    from neuronserve.planner.command import run_simulate, run_simulate_sample
    from neuronserve.planner.settings.simulate import SimulateSettings

    settings = call.settings(SimulateSettings)
    if (sampled := settings.slices) is None:
        run_simulate(settings.options, settings.json_file)
    else:
        run_simulate_sample(*sampled, settings.json_file)


def chat(call: Call) -> None:
    """Chat in the terminal."""
    from neuronserve.server.chat.endpoint import ChatEndpoint
    from neuronserve.server.chat.terminal import run_chat
    from neuronserve.server.settings.chat import ChatSettings

    settings = call.settings(ChatSettings)
    endpoint = ChatEndpoint(settings.url, settings.api_key, settings.timeout)
    run_chat(endpoint, settings.model, settings.system, settings.sampling)


def ls(call: Call) -> None:
    """List the devices of the emulated instance, and the processes that use them."""
    from neuronserve.server.monitor.neuron_ls import run_ls
    from neuronserve.server.settings.monitor import LsSettings

    settings = call.settings(LsSettings)
    run_ls(settings.endpoint, settings.device, settings.json_output)


def top(call: Call) -> None:
    """Show a live view of a running server."""
    from neuronserve.server.monitor.neuron_top import run_top
    from neuronserve.server.settings.monitor import TopSettings

    settings = call.settings(TopSettings)
    run_top(settings.endpoint, settings.interval, settings.once)


def monitor(call: Call) -> None:
    """Print JSON lines about a running server."""
    from neuronserve.server.monitor.neuron_monitor import run_monitor
    from neuronserve.server.settings.monitor import MonitorSettings

    settings = call.settings(MonitorSettings)
    run_monitor(settings.endpoint, settings.interval, settings.once)


def doctor(call: Call) -> None:
    """Report how a server would run on this host."""
    from neuronserve.server.settings.doctor import DoctorSettings

    settings = call.settings(DoctorSettings)
    from neuronserve.server.doctor.command import run_doctor

    run_doctor(settings.host, settings.port, settings.kernel_cache, settings.json_output)


def completion(call: Call) -> None:
    """Print a shell's completion of all commands and flags."""
    from neuronserve.cli.completion import SHELLS, described, settings_parser
    from neuronserve.cli.every import BY_COMMAND
    from neuronserve.cli.serve import is_installed

    parsers = {name: settings_parser(kind) for name, kind in BY_COMMAND.items()}
    if is_installed("loadtests"):
        from neuronserve.loadtests.cli import run_parser

        parsers["bench serve"] = run_parser()
    parser = Parser(prog=f"neuronserve {call.name}", description=f"{call.what[0].upper()}{call.what[1:]}.")
    parser.add_argument("shell", choices=sorted(SHELLS))
    print(SHELLS[parser.parse_args(call.argv).shell](described(call.siblings, parsers)), end="")


def _model_path(settings: ModelSettings) -> Path:
    """Return the local directory of the model. A hub id is downloaded; a GGUF file gets a directory of its own."""
    from pathlib import Path

    if settings.compiled_model is not None:
        return settings.compiled_model
    if Path(settings.model).is_dir() and settings.revision is None and settings.mmproj is None:
        from neuronserve.server.checkpoint.wanted import refuse_pointers

        refuse_pointers(Path(settings.model))
        return Path(settings.model)
    from neuronserve.server.checkpoint.hub import resolve_model

    return resolve_model(settings.model, settings.revision, settings.gguf_cache, settings.mmproj)
