"""Values of every type that goes to the API as it is: what Kubernetes refuses the chart refuses first, with the key
named, and what Kubernetes takes the chart takes. The verdicts in both lists are of Kubernetes 1.36's own code."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import Manifest, refusal, template
from tests.deploy.test_refusals import nested

HERE = Path(__file__).parent


def overlaid(below: Manifest, above: Manifest) -> Manifest:
    """One mapping over another, as Helm lays values over values."""
    merged = copy.deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = overlaid(merged[key], value) if both else value
    return merged


def listed(name: str) -> Iterator[Any]:
    """Each value of a list, with its key."""
    for group in yaml.safe_load((HERE / f"{name}_values.yaml").read_text()):
        for value in group["values"]:
            values = overlaid(group.get("with", {}), nested(group["key"], value))
            yield pytest.param(group["key"], values, id=f"{group['key']}-{value}"[:90])


ODD = list(listed("odd"))


@pytest.mark.parametrize(("key", "values"), ODD)
def test_a_value_that_an_api_server_refuses_is_refused_by_its_key(helm: str, key: str, values: Manifest) -> None:
    said = refusal(helm, values)
    assert any(name in said for name in (key.replace(".", "/"), key)), said


@pytest.mark.parametrize(("key", "values"), list(listed("sound")))
def test_a_value_that_an_api_server_takes_is_taken(helm: str, key: str, values: Manifest) -> None:
    assert template(helm, values=values)


def test_every_type_that_goes_to_the_api_is_tried() -> None:
    tried = {param.values[0].partition(".")[0] for param in ODD}
    assert tried >= {"affinity", "env", "envFrom", "extraContainers", "extraVolumeMounts", "extraVolumes", "ingress"}
    assert tried >= {"imagePullSecrets", "initContainers", "networkPolicy", "podSecurityContext", "securityContext"}
    assert tried >= {"nodeSelector", "resources", "tolerations", "topologySpreadConstraints"}
