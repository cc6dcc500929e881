"""Objects of other projects' APIs, for which no schema is at hand offline: fields, types and enumerations as their
definitions have them (Gateway API 1.4, Gateway API Inference Extension 1.0, KEDA 2, Prometheus Operator), closed."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.deploy.chart import Manifest, golden, of_kind

Schema = dict[str, Any]
BUILT_IN = {"", "apps", "autoscaling", "networking.k8s.io", "policy"}  # groups that every API server has

TEXT: Schema = {"type": "string", "minLength": 1}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}


def of(required: dict[str, Schema], **optional: Schema) -> Schema:
    """A closed object."""
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def some(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


SECRET_KEY = of({"name": NAME, "key": TEXT})
POLICIES = of(
    {},
    stabilizationWindowSeconds={**COUNT, "maximum": 3600},
    policies=some(
        of({"type": {"enum": ["Pods", "Percent"]}, "value": PORT, "periodSeconds": {**PORT, "maximum": 1800}})
    ),
)
RELABELING = of(
    {},
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
    sourceLabels=some(TEXT),
    targetLabel=TEXT,
    regex=TEXT,
    replacement=TEXT,
)
BACKEND = of({"name": NAME}, group=TEXT, kind={"enum": ["Service", "InferencePool"]}, port=PORT, weight=COUNT)
RULE = of({"expr": TEXT}, alert=TEXT, record=TEXT, labels=LABELS, annotations=LABELS, **{"for": DURATION})
TRIGGER = of(
    {"type": {"const": "prometheus"}, "metadata": {**LABELS, "required": ["serverAddress", "query", "threshold"]}},
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    authenticationRef=of({"name": NAME}),
)
SPECS: dict[tuple[str, str], Schema] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): of(
        {
            "parentRefs": some(of({"name": TEXT}, namespace=NAME, group=TEXT, kind=TEXT, sectionName=TEXT, port=PORT)),
            "rules": some(
                of(
                    {"backendRefs": some(BACKEND)},
                    matches=some(of({"path": of({"type": {"const": "PathPrefix"}, "value": {"const": "/"}})})),
                    timeouts=of({"request": DURATION}),
                )
            ),
        },
        hostnames=some(TEXT),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): of(
        {
            "selector": of({"matchLabels": LABELS}),
            "targetPorts": {**some(of({"number": PORT})), "maxItems": 8},
            "endpointPickerRef": of(
                {"name": TEXT, "port": of({"number": PORT})}, failureMode={"enum": ["FailOpen", "FailClose"]}
            ),
        }
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): of(
        {
            "scaleTargetRef": of({"name": NAME}, apiVersion=TEXT, kind={"enum": ["Deployment", "StatefulSet"]}),
            "triggers": some(TRIGGER),
        },
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        fallback=of({"failureThreshold": COUNT, "replicas": COUNT}),
        advanced=of(
            {"horizontalPodAutoscalerConfig": of({"behavior": of({"scaleUp": POLICIES, "scaleDown": POLICIES})})}
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): of(
        {
            "selector": of({"matchLabels": LABELS}),
            "endpoints": some(
                of(
                    {"port": NAME},
                    path=TEXT,
                    interval=DURATION,
                    scrapeTimeout=DURATION,
                    scheme={"enum": ["http", "https"]},
                    tlsConfig=of({}, serverName=TEXT, ca=of({}, secret=SECRET_KEY)),
                    authorization=of({}, type=TEXT, credentials=SECRET_KEY),
                    relabelings=some(RELABELING),
                    metricRelabelings=some(RELABELING),
                )
            ),
        },
        namespaceSelector=of({"matchNames": some(NAME)}),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): of({"groups": some(of({"name": TEXT, "rules": some(RULE)}))}),
}


def custom(case: str) -> list[Manifest]:
    return of_kind(golden(case), *(kind for _, kind in SPECS))


@pytest.mark.parametrize("case", ["all", "keda"])
def test_objects_of_other_apis_have_their_fields(case: str) -> None:
    assert len(custom(case)) >= 4
    for each in custom(case):
        schema = of({"apiVersion": TEXT, "kind": TEXT, "metadata": {}, "spec": SPECS[each["apiVersion"], each["kind"]]})
        jsonschema.validate(each, schema)


def test_every_kind_is_rendered_by_some_case_and_no_other_is_unknown() -> None:
    used = {(each["apiVersion"], each["kind"]) for case in ("all", "keda") for each in golden(case)}
    assert {kind for kind in used if kind[0].rpartition("/")[0] not in BUILT_IN} == set(SPECS)
