"""What a replica needs, whether nodes have it, and how its settings reach them. Without Ray."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuronserve.server.errors import SettingsError
from neuronserve.server.host.memory import GIB
from neuronserve.server.ray.placement import CannotPlace, Room, require_room, room_of
from neuronserve.server.settings.replicas import given
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import ROOT

NODES = (Room(0, 8 * GIB, "head"), Room(4, 8 * GIB, "a"), Room(6, 8 * GIB, "b"))


def settings(*argv: str) -> ServeSettings:
    return load_settings(ServeSettings, ["--distributed", "ray", *argv])


@pytest.mark.parametrize(
    ("argv", "count", "cpus"),
    [((), 1, 6), ((), 2, 4), ((), 3, 3), ((), 4, 2), ((), 10, 1), ((), None, 4), (("--cpu-threads", "5"), 2, 5)],
)
def test_a_replica_gets_as_many_cpus_as_let_all_fit(argv: Sequence[str], count: int | None, cpus: int) -> None:
    assert room_of(settings(*argv), Path("/nowhere"), NODES, count).num_cpus == cpus


def test_memory_is_the_setting_or_follows_from_the_files_of_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(4000))
    (tmp_path / "tokenizer.json").write_bytes(bytes(9000))
    assert room_of(settings(), tmp_path, NODES, 1).num_bytes == 5000 + GIB
    assert room_of(settings("--data-parallel-size", "2"), tmp_path, NODES, 1).num_bytes == 10000 + GIB
    assert room_of(settings("--host-memory-gib", "2.5"), tmp_path, NODES, 1).num_bytes == 5 * GIB // 2


@pytest.mark.parametrize(("need", "most"), [(Room(2, GIB), 5), (Room(1, 5 * GIB), 2), (Room(5, GIB), 1)])
def test_room_is_counted_node_by_node(need: Room, most: int) -> None:
    assert require_room(need, most, NODES) == most
    with pytest.raises(CannotPlace, match=f"of {most + 1} replicas .* room for {most} .*a has 4 CPUs and 8.0 GiB"):
        require_room(need, most + 1, NODES)


def test_given_settings_are_read_back_from_their_file(tmp_path: Path) -> None:
    argv = [
        "--served-model-name",
        "a",
        "--served-model-name",
        "b",
        "--kept-kv-cache-gib",
        "2",
        "--quantization",
        "int8",
    ]
    argv += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}', "--api-key", "k"]
    argv += ["--lora-modules", "x=/y", "--max-queue-delay", "3", "--num-replicas", "auto", "--host-memory-gib", "2"]
    first = settings(str(tmp_path), *argv)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(given(first, tmp_path)))
    again = load_settings(ServeSettings, ["--config", str(file)])
    assert again.model_copy(update={"config": None}) == first


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--num-replicas", "2"], "needs distributed ray"),
        (["--distributed", "ray", "--replicas", "2"], "replicas, which is of servers of one host"),
        (["--distributed", "ray", "--data-dir", "/x"], "data_dir"),
        (["--distributed", "ray", "--num-replicas", "0"], "num-replicas"),
    ],
)
def test_settings_that_contradict_ray_are_refused(argv: Sequence[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(ServeSettings, argv)


def test_the_example_for_serve_has_settings_of_a_server(tmp_path: Path) -> None:
    application: dict[str, Any] = yaml.safe_load((ROOT / "examples/ray_serve.yaml").read_text())["applications"][0]
    module, _, name = application["import_path"].partition(":")
    assert (
        f"\ndef {name}("
        in (ROOT / module.removeprefix("neuronserve.").replace(".", "/")).with_suffix(".py").read_text()
    )
    file = tmp_path / "args.yaml"
    file.write_text(yaml.safe_dump(application["args"]))
    assert load_settings(ServeSettings, ["--config", str(file)]).distributed == "ray"
