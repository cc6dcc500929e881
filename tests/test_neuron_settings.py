"""Neuron's configuration as settings of this server: flags, YAML, and Neuron's own variables of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.server.config import CatalogConfig, NeuronConfig
from neuronserve.server.device.catalog import instance, use_catalog
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.compile import CompileSettings
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import NEURON_PREFIXES, load_settings

CONFIG = "--additional-config"


def load(*argv: str) -> ServeSettings:
    return load_settings(ServeSettings, argv)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith((*NEURON_PREFIXES, "NEURONSERVE_")):
            monkeypatch.delenv(name)


def test_keys_become_the_servers_settings() -> None:
    settings = load(
        CONFIG,
        '{"override-neuron-config": {"context_encoding_buckets": [256, 512], "token_generation_buckets": [1024], '
        '"batch_size": 8, "seq_len": 2048, "tp_degree": 2, "quantized": true, "quantization_dtype": "f8e4m3", '
        '"pa_block_size": 16, "is_prefix_caching": false, "async_mode": true}}',
    )
    assert (settings.context_encoding_buckets, settings.token_generation_buckets) == ((256, 512), (1024,))
    assert (settings.max_num_seqs, settings.max_model_len, settings.tensor_parallel_size) == (8, 2048, 2)
    assert (settings.quantization, settings.block_size, settings.enable_prefix_caching) == ("fp8", 16, False)
    engine = settings.engine_config(DEFAULT_MODEL)
    assert (engine.neuron.is_async, engine.max_num_seqs) == (True, 8)


def test_a_yaml_file_may_nest_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("additional-config:\n  neuron_config:\n    num_seqs_buckets: [1, 4]\n")
    settings = load("--config", str(file))
    assert (settings.max_num_seqs, settings.neuron.config.decode_batches) == (4, (1, 4))


def test_the_variable_of_the_setting_holds_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONSERVE_OVERRIDE_NEURON_CONFIG", '{"batch_size": 3}')
    assert load().max_num_seqs == 3


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (
            ["--max-num-seqs", "16", CONFIG, '{"override_neuron_config": {"batch_size": 8}}'],
            "--max-num-seqs is 16: --additional-config: override_neuron_config.batch_size is 8",
        ),
        (
            ["--max-model-len", "1024", CONFIG, '{"override_neuron_config": {"seq_len": 2048}}'],
            "--max-model-len is 1024: --additional-config: override_neuron_config.seq_len is 2048",
        ),
        (
            ["--max-num-batched-tokens", "512", CONFIG, '{"neuron_config": {"num_batched_tokens_buckets": [256]}}'],
            "--max-num-batched-tokens is 512: --additional-config: neuron_config.num_batched_tokens_buckets is 256",
        ),
        (
            [CONFIG, '{"override_neuron_config": {"pa_block_size": 30}}'],
            "--additional-config: override_neuron_config.pa_block_size: must be a multiple of 16, not '30'",
        ),
        (
            [CONFIG, '{"override_neuron_config": {"logical_nc_config": 3}}'],
            "--additional-config: override_neuron_config.logical_nc_config is 3: 1 or 2 physical cores can be one "
            "logical core",
        ),
        (
            [CONFIG, "{}", "--override-neuron-config", "{}"],
            "--override-neuron-config: it belongs into --additional-config, which is given too",
        ),
    ],
)
def test_contradictions_name_both(argv: list[str], complaint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(*argv)
    assert str(caught.value) == complaint


def test_the_same_said_twice_is_no_contradiction() -> None:
    argv = ["--context-encoding-buckets", "512,128", "--max-num-seqs", "8"]
    config = '{"override_neuron_config": {"context_encoding_buckets": [128, 512], "batch_size": 8}}'
    assert load(*argv, CONFIG, config).context_encoding_buckets == (512, 128)


def test_buckets_of_the_environment_are_the_weakest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CONTEXT_LENGTH_BUCKETS", "128,512")
    monkeypatch.setenv("NEURON_TOKEN_GEN_BUCKETS", "1024")
    assert (load().context_encoding_buckets, load().token_generation_buckets) == ((128, 512), (1024,))
    assert load("--context-encoding-buckets", "64").context_encoding_buckets == (64,)
    assert load("--override-neuron-config", '{"context_encoding_buckets": [256]}').context_encoding_buckets == (256,)
    monkeypatch.setenv("NEURON_TOKEN_GEN_BUCKETS", "many")
    with pytest.raises(SettingsError, match=r"^NEURON_TOKEN_GEN_BUCKETS: must be a valid integer, not 'many'$"):
        load()


@pytest.mark.parametrize(
    ("variables", "lnc"),
    [
        ({}, None),
        ({"NEURON_LOGICAL_NC_CONFIG": "2"}, 2),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "1"}, 1),
        ({"NEURON_CC_FLAGS": "-lnc=2 -O1"}, 2),
        ({"NEURON_CC_FLAGS": "--lnc 2", "NEURON_LOGICAL_NC_CONFIG": "2"}, 2),
        ({"NEURON_LOGICAL_NC_CONFIG": ""}, None),
    ],
)
def test_logical_cores(variables: dict[str, str], lnc: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load().neuron.config == NeuronConfig(logical_nc_config=lnc)


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "NEURON_LOGICAL_NC_CONFIG is 3: 1 or 2 physical cores"),
        ({"NEURON_LOGICAL_NC_CONFIG": "two"}, "NEURON_LOGICAL_NC_CONFIG is 'two': must be a whole number"),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_RT_VIRTUAL_CORE_SIZE": "2"},
            "NEURON_RT_VIRTUAL_CORE_SIZE is 2: NEURON_LOGICAL_NC_CONFIG is 1",
        ),
        (
            {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_CC_FLAGS": "--logical-nc-config=2"},
            "NEURON_CC_FLAGS --logical-nc-config is 2: NEURON_LOGICAL_NC_CONFIG is 1",
        ),
        ({"NEURON_CC_FLAGS": "--model-type 'x"}, "NEURON_CC_FLAGS: No closing quotation"),
    ],
)
def test_wrong_variables(variables: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "argv", "directory"),
    [
        ({"NEURON_COMPILE_CACHE_URL": "/c/neff/"}, [], "/c/neff/neuronserve"),
        ({"NEURON_COMPILE_CACHE_URL": "file:///c"}, [], "/c/neuronserve"),
        ({"NEURON_COMPILE_CACHE_URL": "/c", "NEURON_CC_FLAGS": "--cache_dir=/d"}, [], "/d/neuronserve"),
        ({"NEURON_COMPILE_CACHE_URL": "/c"}, ["--kernel-cache-dir", "/mine"], "/mine"),
        ({"NEURON_COMPILE_CACHE_URL": "s3://bucket/c", "XDG_CACHE_HOME": "/x"}, [], "/x/neuronserve/kernels"),
    ],
)
def test_where_kernels_are_kept(
    variables: dict[str, str], argv: list[str], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert load(*argv).kernel_cache == directory


def test_everything_without_effect_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O1 --model-type=transformer --auto-cast none --cache_dir s3://b --fast")
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    monkeypatch.setenv("NEURON_FUSE_SOFTMAX", "1")
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "1")
    config = '{"override_neuron_config": {"logical_nc_config": 2, "fused_qkv": true}}'
    assert main(["compile", CONFIG, config]) == 2  # without an output
    monkeypatch.setenv("NEURON_COMPILED_ARTIFACTS", "/proc/none")
    assert main(["compile", CONFIG, config]) == 2
    assert capsys.readouterr().err.splitlines()[1:-1] == [
        "neuronserve: --additional-config: override_neuron_config: without effect here: fused_qkv",
        f"neuronserve: NEURON_LOGICAL_NC_CONFIG=1 beats {CONFIG}: override_neuron_config.logical_nc_config, 2",
        "neuronserve: NEURON_CC_FLAGS --cache_dir: s3://b is not available here: only local paths are",
        "neuronserve: NEURON_CC_FLAGS: without effect here: -O 1, --model-type transformer, --auto-cast none",
        "neuronserve: NEURON_CC_FLAGS: not known here: --fast",
        "neuronserve: environment: without effect here: NEURON_FUSE_SOFTMAX",
    ]


def test_compiled_artifacts_are_where_compile_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_COMPILED_ARTIFACTS", "/models/compiled")
    assert load_settings(CompileSettings, []).output == "/models/compiled"
    assert load_settings(CompileSettings, ["-o", "/elsewhere"]).output == "/elsewhere"


@pytest.fixture
def catalog_as_it_was() -> Iterator[None]:
    yield
    use_catalog(CatalogConfig())


@pytest.mark.usefixtures("catalog_as_it_was")
@pytest.mark.parametrize(("lnc", "cores", "has_times"), [(None, 4, False), ("2", 4, False), ("1", 8, True)])
def test_logical_cores_are_those_of_the_part_in_force(
    lnc: str | None, cores: int, has_times: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel_cache: str
) -> None:
    if lnc:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", lnc)
    argv = ["compile", "-o", str(tmp_path / "out"), "--device", "trn2.3xlarge", "--tensor-parallel-size", "8"]
    assert main([*argv, "--kernel-cache-dir", kernel_cache, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert all((graph["modelled_s"] is not None) == has_times for graph in report["graphs"])
    assert bool(report["note"]) != has_times
    assert load("--device", "trn2.3xlarge").engine_config(DEFAULT_MODEL).catalog.logical_nc_config == (
        int(lnc) if lnc else None
    )
    assert instance("trn2.3xlarge").num_cores == cores


@pytest.mark.usefixtures("catalog_as_it_was")
def test_logical_cores_that_a_part_cannot_have_are_refused(
    tmp_path: Path, kernel_cache: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compile", "-o", str(tmp_path / "out"), "--kernel-cache-dir", kernel_cache]
    assert main([*argv, "--override-neuron-config", '{"logical_nc_config": 2}']) == 2
    assert "logical NeuronCore configuration is 2: on Inferentia2 it can be 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
