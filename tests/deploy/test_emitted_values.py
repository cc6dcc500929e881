"""Values that `plan --emit` writes: what the chart makes of them is the server that the folder's own command starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from neuronserve.planner.emit.neuronserve import serve_arguments
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.deploy.chart import manifests, server_container, template, workload
from tests.deploy.test_manifests import settings_of
from tests.planner.emit_cases import CASES, GOLDEN

SAME = ("model", "device", "tensor_parallel_size", "quantization", "max_model_len", "max_num_seqs", "usd_per_hour")
SAME += ("max_num_batched_tokens", "context_encoding_buckets", "batching", "pace", "enable_prefix_caching")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["emulated", "neuron"])
def test_the_chart_serves_the_row(helm: str, case: str, kind: str, tmp_path: Path) -> None:
    d = CASES[case]
    values = yaml.safe_load((GOLDEN / case / f"helm-{kind}.yaml").read_text())
    documents = manifests(template(helm, values=values))
    settings = settings_of(documents, tmp_path)
    command = load_settings(ServeSettings, serve_arguments(d)[1:])
    assert {name: getattr(settings, name) for name in SAME} == {name: getattr(command, name) for name in SAME}
    spec = workload(documents)["spec"]
    limits = server_container(documents)["resources"]["limits"]
    asked = {name: count for name, count in limits.items() if "/" in name}
    if kind == "emulated":
        assert (spec["replicas"], settings.data_parallel_size, asked) == (d.instances * d.dp, 1, {})
        return
    assert (spec["replicas"], settings.data_parallel_size) == (d.instances, d.dp)
    assert spec["template"]["spec"]["nodeSelector"] == {"node.kubernetes.io/instance-type": d.part.name}
    cores = {"aws.amazon.com/neuroncore": 1, "aws.amazon.com/neuron": d.part.chip.cores_per_chip}
    assert [cores[name] * int(count) for name, count in asked.items()] == [d.tp * d.dp]
