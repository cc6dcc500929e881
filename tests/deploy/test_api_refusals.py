"""Objects that an API server would refuse halfway through a release.

Both helm versions refuse them before, and name the value and its limits.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.deploy.chart import CHART, Manifest, refusal, template
from tests.deploy.test_refusals import nested

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
PVC = {"enabled": True, "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
INT32 = 2**31
GPU = "nvidia.com/gpu"


def container(**fields: Any) -> Manifest:
    return {"extraContainers": [{"name": "side", "image": "x", **fields}]}


@pytest.mark.parametrize(
    ("values", "path", "limit"),
    [
        # More than all, and nothing at all.
        (
            nested("strategy.rollingUpdate.maxUnavailable", "150%"),
            "/strategy/rollingUpdate/maxUnavailable",
            "^(100|[1-9]",
        ),
        (nested("pdb.maxUnavailable", "101%"), "/pdb/maxUnavailable", "^(100|[1-9]"),
        (nested("cache.persistence.size", ""), "/cache/persistence/size", "[1-9]"),
        (nested("cache.persistence.size", "0"), "/cache/persistence/size", "[1-9]"),
        (nested("cache.persistence.size", "0.0Gi"), "/cache/persistence/size", "[1-9]"),
        (nested("cache.persistence.size", "20K"), "/cache/persistence/size", "[kMGTPE]"),
        (nested("cache.sizeLimit", "1Gb"), "/cache/sizeLimit", "[numkMGTPE]"),
        # Beyond 32 bits.
        (
            nested("revisionHistoryLimit", INT32),
            "/revisionHistoryLimit",
            "maximum: got 2.147483648×10⁰⁹, want 2.147483647×10⁰⁹",
        ),
        (nested("autoscaling.maxReplicas", INT32), "/autoscaling/maxReplicas", "want 2.147483647×10⁰⁹"),
        (nested("probes.liveness.periodSeconds", INT32), "/probes/liveness/periodSeconds", "want 2.147483647×10⁰⁹"),
        (nested("pdb.maxUnavailable", INT32), "/pdb/maxUnavailable", "want 2.147483647×10⁰⁹"),
        (nested("podSecurityContext.runAsUser", INT32), "/podSecurityContext/runAsUser", "want 2.147483647×10⁰⁹"),
        (
            nested("probes.startup.failureThreshold", INT32 - 1),
            "probes.startup.failureThreshold is",
            "most is 2147483647",
        ),
        # Names.
        (nested("auth.existingSecret", "a..b"), "/auth/existingSecret", "does not match pattern"),
        (nested("priorityClassName", "a..b"), "/priorityClassName", "does not match pattern"),
        (nested("cache.persistence.storageClass", "GP3"), "/cache/persistence/storageClass", "does not match pattern"),
        (nested("podLabels", {"a..b/c": "x"}), "/podLabels", "additional properties 'a..b/c' not allowed"),
        (nested("auth.existingSecretKey", ".."), "/auth/existingSecretKey", "does not match pattern"),
        ({"ingress": {"enabled": True, "hosts": ["a.example", "10.0.0.1"]}}, "ingress.hosts[1] is 10.0.0.1", "no IP"),
        # Times that Prometheus does not read.
        (nested("serviceMonitor.interval", "30m1h"), "/serviceMonitor/interval", "([0-9]+h)?([0-9]+m)?"),
        (nested("serviceMonitor.scrapeTimeout", ""), "/serviceMonitor/scrapeTimeout", "minLength: got 0, want 1"),
        (
            nested("serviceMonitor.relabelings", [{"targetlabel": "a"}]),
            "/serviceMonitor/relabelings/0",
            "'targetlabel'",
        ),
        # One of two.
        (
            {"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
            "env: A",
            "one",
        ),
        (nested("env", [{"name": "A", "valueFrom": {}}]), "/env/0/valueFrom", "missing property 'secretKeyRef'"),
        (nested("envFrom", [{"prefix": "A_"}]), "/envFrom/0", "'configMapRef'"),
        (nested("cache.persistence", PVC), "cache.persistence.accessModes is ReadWriteOncePod", "must be the only one"),
        (
            {"extraVolumes": [{"name": "a", "emptyDir": {}, "secret": {}}]},
            "/extraVolumes/0",
            "maxProperties: got 3, want 2",
        ),
        # Twice.
        ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, "imagePullSecrets:", 'two with the name "a"'),
        (container(ports=[{"containerPort": 1}, {"containerPort": 1}]), "extraContainers[0].ports:", '"1/TCP"'),
        (
            container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
            "extraContainers[0].ports:",
            'two with the name "a"',
        ),
        (container(env=[{"name": "A"}, {"name": "A"}]), "extraContainers[0].env:", 'two with the name "A"'),
        ({"topologySpreadConstraints": [SPREAD, SPREAD]}, "topologySpreadConstraints:", '"zone, ScheduleAnyway"'),
        # Extended resources.
        (nested("resources.limits", {GPU: 0.5}), f"resources.limits.{GPU} is 0.5", "a whole number"),
        (nested("resources.requests", {GPU: 1}), f"resources.requests.{GPU} is 1", f"equal to resources.limits.{GPU}"),
        (
            {"resources": {"requests": {GPU: 1}, "limits": {GPU: 2}}},
            f"resources.requests.{GPU} is 1",
            f"equal to resources.limits.{GPU}, 2",
        ),
        (
            container(resources={"limits": {GPU: "1500m"}}),
            f"extraContainers[0].resources.limits.{GPU}",
            "a whole number",
        ),
        (
            nested("tests.resources.requests", {"cpu": 1}),
            "tests.resources.requests.cpu is 1",
            "at most tests.resources.lim",
        ),
        # Incomplete, or told apart by nothing.
        (
            nested("topologySpreadConstraints", [{"maxSkew": 1}]),
            "/topologySpreadConstraints/0",
            "'topologyKey', 'whenUns",
        ),
        (
            nested("topologySpreadConstraints", [SPREAD | {"maxSkew": 0}]),
            "/topologySpreadConstraints/0/maxSkew",
            "want 1",
        ),
        (
            nested("topologySpreadConstraints", [SPREAD | {"minDomains": 2}]),
            "topologySpreadConstraints[0].minDomains",
            "Not",
        ),
        (nested("tolerations", [{"operator": "Equal"}]), "tolerations[0].operator is Equal", "must be Exists"),
        (
            nested("tolerations", [{"key": "a", "operator": "Exists", "value": "b"}]),
            "tolerations[0].value is b",
            "none",
        ),
        (
            nested("tolerations", [{"key": "a", "tolerationSeconds": 9}]),
            "tolerations[0].tolerationSeconds",
            "NoExecute",
        ),
        (
            container(volumeMounts=[{"name": "a", "mountPath": "/a"}]),
            "extraContainers[0].volumeMounts: a",
            "cache, config, tmp",
        ),
        (
            {"extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]},
            "extraVolumeMounts: a",
            "volumes are cache, config, tmp",
        ),
    ],
)
def test_what_an_api_server_would_refuse_is_refused_with_the_path_and_the_limit(
    helm: str, values: Manifest, path: str, limit: str
) -> None:
    said = refusal(helm, values)
    assert path in said
    assert limit in said


@pytest.mark.parametrize(
    ("values", "path", "limit"),
    [
        (nested("securityContext", {"runAsNonroot": True}), "/securityContext", "'runAsNonroot' not allowed"),
        (
            nested("podSecurityContext.seccompProfile", {"type": "Local"}),
            "/podSecurityContext/seccompProfile/type",
            "'Loc",
        ),
        (
            nested("podSecurityContext", {"fsGroupChangePolicy": "Never"}),
            "/podSecurityContext/fsGroupChange",
            "OnRootM",
        ),
        (nested("tolerations", [{"key": "a", "efect": "NoSchedule"}]), "/tolerations/0", "'efect' not allowed"),
        (nested("tolerations", [{"key": "a", "effect": "NoScheduling"}]), "/tolerations/0/effect", "'NoSchedule'"),
        (nested("affinity", {"podAntiafinity": {}}), "/affinity", "'podAntiafinity' not allowed"),
        (nested("affinity.nodeAffinity", {"required": {}}), "/affinity/nodeAffinity", "'required' not allowed"),
        (nested("topologySpreadConstraints", [SPREAD | {"maxSkw": 1}]), "/topologySpreadConstraints/0", "'maxSkw'"),
        (container(livenesProbe={}), "/extraContainers/0", "'livenesProbe' not allowed"),
        (container(livenessProbe={"httpGet": {"path": "/", "prt": 1}}), "/extraContainers/0/livenessProbe", "'prt'"),
        (container(livenessProbe={"periodSeconds": 1}), "/extraContainers/0/livenessProbe", "'httpGet'"),
        (container(ports=[{"containerPort": 70000}]), "/extraContainers/0/ports/0/containerPort", "want 65,535"),
        (container(resources={"limits": {"mem": "1Gi"}}), "/extraContainers/0/resources/limits", "'mem' not allowed"),
        ({"initContainers": [{"name": "A", "image": "x"}]}, "/initContainers/0/name", "does not match pattern"),
        ({"extraVolumes": [{"name": "a", "configmap": {}}]}, "/extraVolumes/0", "'configmap' not allowed"),
        ({"extraVolumeMounts": [{"name": "a", "path": "/a"}]}, "/extraVolumeMounts/0", "'path' not allowed"),
        (nested("networkPolicy.ingressFrom", [{"podselector": {}}]), "/networkPolicy/ingressFrom/0", "'podselector'"),
        (nested("networkPolicy.extraEgress", [{"port": 1}]), "/networkPolicy/extraEgress/0", "'port' not allowed"),
        (nested("ingress.tls", [{"secret": "a"}]), "/ingress/tls/0", "'secret' not allowed"),
        (nested("imagePullSecrets", [{"nmae": "a"}]), "/imagePullSecrets/0", "'nmae' not allowed"),
        (nested("env", [{"name": "A", "valeu": "1"}]), "/env/0", "'valeu' not allowed"),
        (nested("probes.startup", {"periodSecond": 1}), "/probes/startup", "'periodSecond' not allowed"),
        (nested("httpRoute.parentRefs", [{"nmae": "a"}]), "/httpRoute/parentRefs/0", "'nmae' not allowed"),
    ],
)
def test_what_goes_to_the_api_as_it_is_has_the_apis_fields(helm: str, values: Manifest, path: str, limit: str) -> None:
    said = refusal(helm, values)
    assert path in said
    assert limit in said


@pytest.mark.parametrize(
    "values",
    [
        nested("strategy.rollingUpdate", {"maxUnavailable": "100%", "maxSurge": "150%"}),
        nested("pdb.maxUnavailable", 0),
        nested("serviceMonitor.interval", "1h30m"),
        nested("cache.persistence", {"enabled": True, "size": "0.5Ti", "accessModes": ["ReadWriteOncePod"]}),
        {"resources": {"requests": {GPU: 2}, "limits": {GPU: "2"}}},
        nested("resources.limits", {GPU: 1}),  # the request is the same by default
        nested("podSecurityContext", {"supplementalGroups": [1, 2], "seLinuxOptions": {"level": "s0"}}),
        nested("tolerations", [{"operator": "Exists"}, {"key": "a", "effect": "NoExecute", "tolerationSeconds": 9}]),
        nested("topologySpreadConstraints", [SPREAD, SPREAD | {"topologyKey": "kubernetes.io/hostname"}]),
        container(livenessProbe={"grpc": {"port": 1}}, lifecycle={"preStop": {"sleep": {"seconds": 1}}}),
        container(resources={"limits": {"cpu": 1, "memory": "1Gi"}}, restartPolicy=None),
        {
            "extraVolumes": [{"name": "a", "persistentVolumeClaim": {"claimName": "a"}}],
            "extraVolumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "b"}],
        },
        nested("networkPolicy", {"enabled": True, "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}),
        nested("env", [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": 1}}}]),
        nested("tests.resources", {"requests": None, "limits": None}),
    ],
)
def test_what_an_api_server_would_take_is_taken(helm: str, values: Manifest) -> None:
    assert template(helm, values=values)


def test_no_value_for_the_api_is_a_free_form_map() -> None:
    """But `global`, which belongs to charts above this one, and `extraObjects`, which may be of any kind."""

    def free(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        types = schema.get("type", ())
        is_object = "object" in ([types] if isinstance(types, str) else types)
        open_ended = is_object and "additionalProperties" not in schema
        found = [path] if open_ended else []
        for name, part in schema.get("properties", {}).items():
            found += free(part, f"{path}.{name}")
        return found + free(schema.get("items"), f"{path}[]")

    roots = {**SCHEMA["$defs"], "": {key: value for key, value in SCHEMA.items() if key != "$defs"}}
    found = [each for name, schema in roots.items() for each in free(schema, name)]
    assert found == [".global", ".extraObjects[]"]
