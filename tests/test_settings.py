"""One definition, three sources, and complaints that name source, value and limit."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.settings.plan import PlanSettings
from neuronserve.planner.settings.simulate import SimulateSettings
from neuronserve.planner.simulate.autoscaling import Autoscaling
from neuronserve.planner.simulate.failures import Failures
from neuronserve.planner.simulate.options import SimulationOptions, Slo
from neuronserve.server.api.config import ApiConfig, StoreConfig
from neuronserve.server.config import DataParallel, EngineConfig, RuntimeCores
from neuronserve.server.config.formats import WeightGroups
from neuronserve.server.config.offload import OffloadConfig
from neuronserve.server.errors import SettingsError
from neuronserve.server.media.config import MediaConfig
from neuronserve.server.settings.base import Settings
from neuronserve.server.settings.help_groups import ADVANCED, GROUPS, HEADINGS
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.synthetic import SyntheticWorkload


def load(*argv: str) -> ServeSettings:
    return load_settings(ServeSettings, argv)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ServeSettings.model_fields:
        monkeypatch.delenv(f"NEURONSERVE_{name.upper()}", raising=False)


def test_defaults_serve_the_built_in_model_on_loopback() -> None:
    settings = load()
    assert (settings.model, settings.host, settings.port) == (str(DEFAULT_MODEL), "127.0.0.1", 8000)
    assert (settings.device, settings.tensor_parallel_size, settings.shutdown_timeout) == ("inf2.xlarge", 1, 30)
    assert settings.model_names == ("default",)


def test_argv_wins_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1111\nmax-num-seqs: 3\nblock_size: 16\nenable-prefix-caching: false\n")
    monkeypatch.setenv("NEURONSERVE_PORT", "2222")
    monkeypatch.setenv("NEURONSERVE_MAX_NUM_SEQS", "4")
    settings = load("--config", str(file), "--port", "3333")
    assert (settings.port, settings.max_num_seqs, settings.block_size) == (3333, 4, 16)
    assert settings.enable_prefix_caching is False
    monkeypatch.setenv("NEURONSERVE_CONFIG", str(file))
    assert load().block_size == 16


def test_lists_come_from_repeated_flags_commas_or_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("--api-key", "a,b", "--api-key", "c").api_key == ("a,b", "c")
    monkeypatch.setenv("NEURONSERVE_API_KEY", "a, b")
    assert load().api_key == ("a", "b")
    file = tmp_path / "serve.yaml"
    file.write_text("served-model-name: [x, y]\n")
    assert load("--config", str(file)).model_names == ("x", "y")


def test_only_texts_are_repeated_and_none_is_split_or_read_as_null() -> None:
    settings = load(
        "--served-model-name", "null", "--served-model-name", '"1"', "--block-size", "16", "--block-size", "64"
    )
    assert (settings.served_model_name, settings.block_size) == (("null", '"1"'), 64)
    buckets = load("--context-encoding-buckets", "128", "--context-encoding-buckets", "256, 512")
    assert buckets.context_encoding_buckets == (256, 512)


def test_a_model_whose_name_cannot_be_said_in_json_needs_another() -> None:
    with pytest.raises(SettingsError, match=r"the model's name is not UTF-8.*--served-model-name gives another"):
        load(os.fsdecode(b"mod\xe8le"))
    assert load(os.fsdecode(b"mod\xe8le"), "--served-model-name", "m").model_names == ("m",)


def test_switches() -> None:
    assert load("--no-enable-prefix-caching").enable_prefix_caching is False
    assert load("--disable-access-log").disable_access_log is True


@pytest.mark.parametrize(
    ("argv", "stack", "batching"),
    [
        ([], "ideal", "continuous"),
        (["--pace", "device"], "nxdi-vllm", "neuron"),
        (["--pace", "device", "--device", "trn2.48xlarge"], "vllm-neuron", "neuron"),
        (["--stack", "tgi"], "tgi", "tgi"),
        (["--stack", "nxd-static"], "nxd-static", "static"),
        (["--stack", "tgi", "--batching", "continuous"], "tgi", "continuous"),
        (["--batching", "neuron"], "ideal", "neuron"),
    ],
)
def test_a_stack_brings_its_batching_unless_another_is_given(argv: list[str], stack: str, batching: str) -> None:
    config = load(*argv).engine_config(DEFAULT_MODEL)
    assert (config.stack, config.batching) == (stack, batching)


def test_features_that_a_real_part_may_lack_are_those_in_use() -> None:
    assert load().features == ("prefix_caching", "chunked_prefill")
    assert load("--no-enable-prefix-caching", "--batching", "neuron").features == ()


def test_kernels_are_checked_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().engine_config(DEFAULT_MODEL).kernel_checks is False
    monkeypatch.setenv("NEURONSERVE_KERNEL_CHECKS", "1")
    assert load().engine_config(DEFAULT_MODEL).kernel_checks is True


def test_a_kubernetes_service_link_is_not_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONSERVE_PORT", "tcp://10.0.0.7:8000")
    assert load().port == 8000


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--port", "70000"], "--port: must be less than or equal to 65535, not '70000'"),
        (["--port", "web"], "--port: must be a valid integer, not 'web'"),
        (["--max-num-seqs", "0"], "--max-num-seqs: must be greater than or equal to 1, not '0'"),
        (["--dtype", "fp4"], "--dtype: must be 'auto', 'bfloat16' or 'float32', not 'fp4'"),
        (
            ["--device-memory-utilization", "1.5"],
            "--device-memory-utilization: must be less than or equal to 1, not '1.5'",
        ),
        (
            ["--device-memory-utilization", "nan"],
            "--device-memory-utilization: must be less than or equal to 1, not 'nan'",
        ),
        (["--shutdown-timeout", "inf"], "--shutdown-timeout: must be less than or equal to 86400, not 'inf'"),
        (["--api-key", ""], "--api-key: must have at least 1 character, not ''"),
        (
            ["--context-encoding-buckets", "128,0"],
            "--context-encoding-buckets: must be greater than or equal to 1, not '0'",
        ),
    ],
)
def test_a_wrong_flag_is_named_with_value_and_limit(argv: list[str], complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(*argv)
    assert str(caught.value) == complaint


def test_wrong_values_elsewhere_name_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 70000\n")
    with pytest.raises(SettingsError, match=r"serve\.yaml: port: must be less than or equal to 65535"):
        load("--config", str(file))
    file.write_text("prot: 1\n")
    with pytest.raises(SettingsError, match=r"serve\.yaml: prot: there is no such setting \(did you mean port\?\)"):
        load("--config", str(file))
    file.write_text("api-key: 12345\n")
    with pytest.raises(SettingsError, match=r"serve\.yaml: api_key: must be text: put quotes around it, not '12345'"):
        load("--config", str(file))
    file.write_text("config: other.yaml\n")
    with pytest.raises(SettingsError, match=r"serve\.yaml: config: a file cannot name another one"):
        load("--config", str(file))
    file.write_text("- 1\n")
    with pytest.raises(SettingsError, match="must hold a mapping"):
        load("--config", str(file))
    file.write_text("a: [\n")
    with pytest.raises(SettingsError, match="is not YAML"):
        load("--config", str(file))
    with pytest.raises(SettingsError, match="cannot read"):
        load("--config", str(tmp_path / "none.yaml"))
    monkeypatch.setenv("NEURONSERVE_API_KEY", "")
    with pytest.raises(
        SettingsError, match=r"^NEURONSERVE_API_KEY: must be a key: an empty one would let everybody in"
    ):
        load()
    monkeypatch.setenv("NEURONSERVE_API_KEY", "k")
    monkeypatch.setenv("NEURONSERVE_BLOCK_SIZE", "0")
    with pytest.raises(SettingsError, match=r"^NEURONSERVE_BLOCK_SIZE: must be greater than or equal to 16, not '0'"):
        load()


@pytest.mark.parametrize("argv", [["--max-num-seq"], ["--max_num_seqs=3"], ["--no-max-num-seqs"]])
def test_a_flag_that_is_none_is_refused_with_the_nearest(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(*argv)
    assert f"unrecognized arguments: {' '.join(argv)} (did you mean --max-num-seqs?)" in capsys.readouterr().err


def test_a_file_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=["port: 1111\n"])
    writer.start()
    assert load("--config", str(pipe)).port == 1111
    writer.join()


NOT_SLICED = {  # what the command itself needs, or what becomes part of a field of another name
    ServeSettings: {"config", "revision", "log_level", "host", "port", "engine_mode", "data_parallel_size"}
    | {"cpu_binding", "num_gpu_blocks_override", "catalog", "region", "spot_discount"}
    | {"model", "tokenizer", "served_model_name", "api_key", "api_key_file", "admin_api_key", "trace_dir"}
    | {"host_memory_gib", "max_engine_restarts", "engine_hang_timeout", "spare_engine", "strict_device"}
    | {"shutdown_timeout", "log_format", "disable_access_log", "disable_log_stats", "log_stats_interval"}
    | {"additional_config", "override_neuron_config", "quantization_group_size", "quantization_symmetric"}
    | {"enable_lora", "lora_modules", "max_loras", "max_lora_rank", "console", "speculative_config"}
    | {"replicas", "kept_kv_cache_gib", "kv_offloading_size", "kv_offloading_dir", "kv_offloading_dir_size"}
    | {"limit_mm_per_prompt", "mm_processor_kwargs", "kv_events_config", "disaggregate", "mmproj"}
    | {"pipeline_parallel_size", "pipeline_stages", "pipeline_key_file", "distributed", "num_replicas"}
    | {"models", "max_model_wait", "multi_model_endpoint"}
    | {"api_keys_file", "public_paths", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"},
    PlanSettings: {"config", "json_file", "catalog", "region", "spot_discount", "trace", "ttft_ms", "tpot_ms"}
    | {"ttft_p95_ms", "ttft_p99_ms", "tpot_p95_ms", "tpot_p99_ms"}
    | {"calibration", "check", "disaggregate", "emit", "emit_row", "gpus", "picture", "wide", "serve", "host", "port"},
    SimulateSettings: {"config", "json_file", "catalog", "region", "spot_discount", "trace", "device"}
    | {"calibration", "num_prompts", "request_rate", "random_input_len", "random_output_len", "too_long"}
    | {"context_encoding_buckets", "token_generation_buckets", "speculative_config", "sample"},
}


@pytest.mark.parametrize(
    ("kind", "slices"),
    [
        (ServeSettings, (EngineConfig, ApiConfig, StoreConfig, MediaConfig)),
        (PlanSettings, (PlanOptions,)),
        (SimulateSettings, (SimulationOptions, SyntheticWorkload, Arrivals, Slo, Autoscaling, Failures)),
    ],
)
def test_each_setting_is_a_field_of_a_slice_or_named_as_another(kind: type[Settings], slices: tuple[Any, ...]) -> None:
    taken = {field.name for each in slices for field in dataclasses.fields(each)}
    assert kind.model_fields.keys() - taken == NOT_SLICED[kind] - taken
    assert NOT_SLICED[kind] <= kind.model_fields.keys()


def test_the_planners_names_are_aliases_of_the_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("device: [inf2.xlarge]\ninput-len: 5\ntensor_parallel_size: 2\n")
    monkeypatch.setenv("NEURONSERVE_OUTPUT_LEN", "7")
    settings = load_settings(PlanSettings, ["m", "--config", str(file), "--ttft-ms", "500", "--input-len", "6"])
    options = settings.options(None)
    assert (options.model, options.devices, options.tensor_parallel_sizes) == ("m", ("inf2.xlarge",), (2,))
    assert (options.input_tokens, options.output_tokens, options.ttft_s) == (6, 7, 0.5)
    with pytest.raises(SettingsError, match=r"^--input-len: must be greater than or equal to 1, not '0'"):
        load_settings(PlanSettings, ["--input-len", "0"])
    monkeypatch.setenv("NEURONSERVE_OUTPUT_LEN", "x")
    with pytest.raises(SettingsError, match=r"^NEURONSERVE_OUTPUT_LEN: must be a valid integer"):
        load_settings(PlanSettings, [])


def test_each_part_gets_its_slice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = load("/m", "--dtype", "float32", "--num-gpu-blocks-override", "7", "--tokenizer", "/t")
    engine = settings.engine_config(Path("/m"))
    assert (engine.model_path, engine.dtype, engine.num_blocks_override, engine.max_model_len) == (
        "/m",
        "float32",
        7,
        None,
    )
    assert engine.kernel_cache_dir == str(tmp_path / "neuronserve" / "kernels")
    assert engine.cpu_threads >= 1
    api = settings.api_config(Path("/m"))
    assert (api.model_names, api.model_path, api.tokenizer_path) == (("/m",), Path("/m"), Path("/t"))


def test_a_user_of_no_account_has_the_caches_of_a_home_that_is_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run --user 12345` sets HOME; a systemd unit does not."""
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    assert load("/m").engine_config(Path("/m")).kernel_cache_dir == "/.cache/neuronserve/kernels"


def test_groups_of_int4_are_named_by_size_and_symmetry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("/m", "--quantization", "int4").requested_formats.groups is None
    monkeypatch.setenv("NEURONSERVE_QUANTIZATION_GROUP_SIZE", "128")
    assert load("/m").requested_formats.groups == WeightGroups(128)
    settings = load("/m", "--quantization", "int4", "--quantization-group-size", "64", "--no-quantization-symmetric")
    assert settings.engine_config(Path("/m")).requested_formats.groups == WeightGroups(64, is_symmetric=False)
    with pytest.raises(SettingsError, match="quantization is int8: int4 alone has groups"):
        load("/m", "--quantization", "int8").engine_config(Path("/m"))
    with pytest.raises(SettingsError, match="quantization-group-size"):
        load("/m", "--quantization-group-size", "48")


def test_how_traces_are_sent_follows_the_flag_then_opentelemetrys_own_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)

    def protocol(*argv: str) -> str:
        return load(*argv).api_config(tmp_path).otlp_traces_protocol

    assert protocol() == "grpc"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert protocol() == "http/protobuf"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    with pytest.raises(SettingsError, match=r"^OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: .* not 'http/json'$"):
        protocol()
    assert protocol("--otlp-traces-protocol", "grpc") == "grpc"
    with pytest.raises(SettingsError, match=r"--otlp-traces-endpoint: .*'collector:4317'"):
        load("--otlp-traces-endpoint", "collector:4317")


def test_the_throughput_line_has_an_interval_or_is_off(tmp_path: Path) -> None:
    assert load("--log-stats-interval", "2.5").api_config(tmp_path).log_stats_interval_s == 2.5
    assert load("--disable-log-stats").api_config(tmp_path).log_stats_interval_s is None
    with pytest.raises(SettingsError, match=r"--log-stats-interval: must be greater than 0, not '0'"):
        load("--log-stats-interval", "0")


@pytest.mark.parametrize(("argv", "asked"), [((), None), (("--quantization", "none"), "none")])
def test_quantization_is_as_the_files_are_unless_it_is_asked_for(argv: tuple[str, ...], asked: str | None) -> None:
    assert load(*argv).engine_config(Path("model")).quantization == asked


def test_engines_share_the_hosts_threads_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuronserve.server.settings.serve.available_bytes", lambda: 3_000_000)
    assert load().engine_configs(Path("model")) == (load().engine_config(Path("model")),)
    configs = load("--data-parallel-size", "3", "--cpu-threads", "8").engine_configs(Path("model"))
    assert [config.cpu_threads for config in configs] == [2, 3, 3]
    assert [config.data_parallel for config in configs] == [DataParallel(rank, 3, 1_000_000) for rank in range(3)]
    spare = load("--spare-engine", "--cpu-threads", "8")
    assert spare.engine_configs(Path("model"))[0].data_parallel == DataParallel(host_memory_bytes=1_500_000)
    assert spare.engine_configs(Path("model"))[0].cpu_threads == 8
    assert spare.api_config(Path("model")).healing.keeps_spare
    (staged,) = load("--pipeline-parallel-size", "3", "--cpu-threads", "8").engine_configs(Path("model"))
    assert (staged.cpu_threads, staged.data_parallel) == (2, DataParallel(host_memory_bytes=1_000_000))
    monkeypatch.setattr("neuronserve.server.host.affinity.allowed_cpus", lambda: set(range(8)))
    bound = load("--data-parallel-size", "3", "--cpu-threads", "8", "--cpu-binding", "7,0-6")
    assert [config.cpus for config in bound.engine_configs(Path("model"))] == [(7, 0), (1, 2, 3), (4, 5, 6)]
    configs = load("--data-parallel-size", "3", "--cpu-threads", "1").engine_configs(Path("model"))
    assert [config.cpu_threads for config in configs] == [1, 1, 1]
    assert [config.most_kept_bytes for config in configs] == [None] * 3
    configs = load("--data-parallel-size", "2", "--kept-kv-cache-gib", "0.5").engine_configs(Path("model"))
    assert [config.most_kept_bytes for config in configs] == [1 << 29] * 2
    tiers = "--kv-offloading-size", "0.5", "--kv-offloading-dir", "/tiers", "--kv-offloading-dir-size", "2"
    configs = load("--data-parallel-size", "2", *tiers).engine_configs(Path("model"))
    assert [config.offload for config in configs] == [OffloadConfig(1 << 28, "/tiers", 1 << 30, 1 << 31)] * 2


def test_the_runtimes_own_variables_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEURON_RT_VISIBLE_CORES", raising=False)
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "")
    assert load().engine_config(Path("m")).runtime_cores == RuntimeCores()
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "2")
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0,2-3")
    assert load().engine_config(Path("m")).runtime_cores == RuntimeCores("0,2-3", "2")


def test_the_type_of_the_kv_cache_reaches_the_engine() -> None:
    assert load("--kv-cache-dtype", "fp8").engine_config(DEFAULT_MODEL).kv_cache_dtype == "fp8"
    assert load().engine_config(DEFAULT_MODEL).kv_cache_dtype == "auto"
    with pytest.raises(SettingsError, match=r"--kv-cache-dtype: .*'auto', 'bfloat16', 'int8' or 'fp8', not 'fp4'"):
        load("--kv-cache-dtype", "fp4")


def test_the_help_shows_what_most_users_meet_and_the_rest_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*argv: str) -> str:
        with pytest.raises(SystemExit):
            main(["serve", *argv])
        return capsys.readouterr().out

    few, all_of_them = shown("--help"), shown("--help-all")
    assert len(few.splitlines()) <= 60, "one screen"
    assert max(map(len, few.splitlines())) <= 80
    for heading, names in GROUPS.items():
        assert (f"\n{heading}:\n" in few) == (heading != ADVANCED)
        assert f"\n{heading}:\n" in all_of_them
        for name in names if heading != ADVANCED else ():
            assert ("[MODEL]" if name == "model" else f"  --{name.replace('_', '-')} ") in few, name
    assert "--block-size" not in few
    for name in ServeSettings.model_fields:
        flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
        assert flag in all_of_them, name
    assert set(HEADINGS) >= set(ServeSettings.model_fields)
