"""Files of `plan --emit` for Kubernetes and AWS against the schemas of their readers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from neuronserve.planner.emit import kubernetes
from neuronserve.planner.emit.aws import INSTANCE_TYPES
from neuronserve.planner.emit.deployment import LeftOut
from neuronserve.planner.emit.targets import rendered
from tests.planner.emit_cases import rows

CHART = Path(__file__).resolve().parents[2] / "helm"
ROWS = list(rows())


def test_values_are_those_of_the_chart() -> None:
    chart = Draft202012Validator(json.loads((CHART / "values.schema.json").read_text()))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for d in ROWS:
        emulated, on_nodes = kubernetes.emulated(d), kubernetes.on_nodes(d)
        for values in (emulated, on_nodes):
            if not isinstance(values, LeftOut):
                chart.validate(merged(defaults, values))
        assert emulated["replicaCount"] == d.instances * d.dp
        assert "aws.amazon.com" not in str(emulated)


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return values merged as helm does."""
    both = {
        key: merged(under[key], value) if isinstance(value, dict) and isinstance(under.get(key), dict) else value
        for key, value in over.items()
    }
    return under | both


TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": r"^(([0-9]+(s|m|h))+|Never)$"}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    properties = required | optional
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


# Types and enumerations of karpenter.sh/v1 NodePool, for the fields that are written (provider-aws 1d927085d).
NODE_POOL = closed(
    {
        "apiVersion": {"const": "karpenter.sh/v1"},
        "kind": {"const": "NodePool"},
        "metadata": closed({"name": TEXT}),
        "spec": closed(
            {
                "template": closed(
                    {
                        "spec": closed(
                            {
                                "nodeClassRef": closed({"group": TEXT, "kind": TEXT, "name": TEXT}),
                                "requirements": {
                                    "type": "array",
                                    "items": closed(
                                        {"key": TEXT, "operator": {"enum": ["In", "NotIn", "Exists", "Gt", "Lt"]}},
                                        values={"type": "array", "items": TEXT},
                                    ),
                                },
                            },
                            taints={
                                "type": "array",
                                "items": closed({"key": TEXT, "effect": {"enum": ["NoSchedule", "NoExecute"]}}),
                            },
                            expireAfter=DURATION,
                        )
                    }
                )
            },
            limits={"type": "object", "additionalProperties": {"type": ["integer", "string"]}},
            disruption=closed(
                {"consolidateAfter": DURATION},
                consolidationPolicy={"enum": ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]},
            ),
        ),
    }
)


def test_the_node_pool_is_one_of_karpenter_and_holds_the_row() -> None:
    known = Draft202012Validator(NODE_POOL)
    for d in ROWS:
        pool = kubernetes.node_pool(d)
        if isinstance(pool, LeftOut):
            assert d.part.num_hosts > 1, "an UltraServer is no instance type"
            continue
        known.validate(pool)
        assert pool["spec"]["limits"]["aws.amazon.com/neuron"] == d.instances * d.part.num_chips


OPERATIONS = {
    "ecs-task-definition.json": ("ecs", "RegisterTaskDefinition"),
    "sagemaker-model.json": ("sagemaker", "CreateModel"),
    "sagemaker-endpoint-config.json": ("sagemaker", "CreateEndpointConfig"),
    "sagemaker-inference-component.json": ("sagemaker", "CreateInferenceComponent"),
}


def test_requests_are_those_that_the_services_describe() -> None:
    """Names, types, required members, lengths and enumerations, by the models of AWS's own client."""
    pytest.importorskip("botocore")
    from botocore.validate import ParamValidator

    services = {name: service_model(name) for name in ("ecs", "sagemaker")}
    for d in ROWS:
        texts = rendered(d).texts
        for path in OPERATIONS.keys() & texts.keys():
            service, operation = OPERATIONS[path]
            shape = services[service].operation_model(operation).input_shape
            request = json.loads(texts[path])
            found = ParamValidator().validate(request, shape)
            assert not found.has_errors(), found.generate_report()
            assert list(outside(request, shape)) == []


def test_the_instance_types_of_endpoints_are_those_of_the_service() -> None:
    pytest.importorskip("botocore")
    types = service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum
    assert {name for name in types if re.match(r"ml\.(inf|trn)", name)} == INSTANCE_TYPES


def service_model(name: str) -> Any:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model(name, "service-2"))


def outside(value: Any, shape: Any) -> Iterator[str]:
    """Check enumerations, patterns and upper bounds, which only the service would refuse."""
    if shape.type_name == "structure":
        for key, member in value.items():
            yield from outside(member, shape.members[key])
    elif shape.type_name in {"list", "map"}:
        for item in value if shape.type_name == "list" else value.values():
            yield from outside(item, shape.member if shape.type_name == "list" else shape.value)
    elif shape.type_name == "string":
        is_placeholder = re.fullmatch(r"<[A-Z0-9_]+>", value)
        if getattr(shape, "enum", None) and value not in shape.enum:
            yield f"{value} is none of {shape.name}"
        pattern = shape.metadata.get("pattern")
        if pattern and not is_placeholder and not re.fullmatch(pattern, value):
            yield f"{value} does not match {pattern}"
    elif shape.type_name == "integer" and value > shape.metadata.get("max", value):
        yield f"{value} is above the largest {shape.name}"
