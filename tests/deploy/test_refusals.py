"""Wrong values: helm refuses them with both versions, by the schema or by the templates, and names the key."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, Manifest, golden, refusal, settings_text, template

RAY = {"mode": "rayservice"}
GROUPS = {"mode": "leaderworkerset", "pipeline": {"size": 2, "existingSecret": "stage-key"}}


def nested(key: str, value: Any) -> Manifest:
    """`a.b` and a value to {"a": {"b": value}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("replicaCuont", 2),
        ("model.nmae", "x"),
        ("resources.limit", {"cpu": 1}),
        ("autoscaling.keda.serverAdress", "http://x"),
        ("replicaCount", -1),
        ("replicaCount", "two"),
        ("replicaCount", 1.5),
        ("device", "inf3.xlarge"),
        ("tensorParallelSize", 0),
        ("tensorParallelSize", 3),
        ("tensorParallelSize", 4),  # more than the inf2.xlarge has
        ("price.hourlyUsd", "cheap"),
        ("price.hourlyUsd", -0.5),
        ("slo.ttftSeconds", 3),  # no bound of the histogram's
        ("slo.objective", 95),
        ("dataParallelSize", 0),
        ("dataParallelSize", "two"),
        ("engine.batching", "dynamic"),
        ("engine.pace", "real"),
        ("engine.kvCacheDtype", "int4"),
        ("engine.contextEncodingBuckets", [0]),
        ("engine.tokenGenerationBuckets", ["128"]),
        ("server.toolCallParser", "xml"),
        ("price.basis", "ondemand"),
        ("price.spotDiscount", 60),
        ("engine.blockSize", 24),
        ("engine.deviceMemoryUtilization", 1.5),
        ("server.port", 80),  # the server has no right to ports below 1024
        ("server.port", 70000),
        ("model.maxModelLen", 1),
        ("model.dtype", "float16"),
        ("model.quantization", "int3"),
        ("tracing.otlpEndpoint", "collector:4317"),
        ("model.servedNames", ["one, two"]),
        ("kind", "DaemonSet"),
        ("mode", "Router"),
        ("router.replicaCount", 1),
        ("ray.version", "2.60"),
        ("pipeline.size", 0),
        ("auth.apiKeys", ["with,comma"]),
        ("auth.apiKeys", [""]),
        ("image.tag", "bad tag"),
        ("image.digest", "sha256:short"),
        ("preStopSleepSeconds", 0),
        ("cache.persistence.accessModes", ["ReadOnlyMany"]),
        ("accelerator.type", "gpu"),
        ("accelerator.count", 0),
        ("fullnameOverride", "1st"),
        ("commonLabels", {"a": True}),
        ("autoscaling.minReplicas", 0),
        ("pdb.maxUnavailable", "half"),
        ("commonLabels", {"team": "a b"}),
        ("podLabels", {"a/b/c": "x"}),
        ("podLabels", {"team": "x" * 64}),
        ("podAnnotations", {"retries": 3}),
        ("service.annotations", {"internal": True}),
        ("prometheusRule.alertLabels", {"my-team": "x"}),
        ("resources.requests", {"memory": "8GB"}),
        ("resources.limits", {"mem": "8Gi"}),
        ("resources.limits", {"cpu": -1}),
        ("cache.sizeLimit", "10 GB"),
        ("strategy", {"type": "Rolling"}),
        ("strategy.rollingUpdate", {"maxsurge": 1}),
        ("ingress.hosts", ["https://llm.example.com"]),
        ("httpRoute.hostnames", ["LLM.example.com"]),
        ("httpRoute.requestTimeout", "none"),
    ],
)
def test_the_schema_refuses_wrong_values_and_names_the_key(helm: str, key: str, value: Any) -> None:
    said = refusal(helm, nested(key, value))
    assert key.rpartition(".")[2] in said
    assert "meet the specifications of the schema" in said or "schema" in said


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"engine": {"maxNumBatchedTokens": 32}}, "engine.maxNumBatchedTokens is 32: it must be at least"),
        ({"terminationGracePeriodSeconds": 70}, "terminationGracePeriodSeconds is 70: it must be above"),
        ({"model": {"existingClaim": "c", "name": "org/model"}}, 'model.name is "org/model"'),
        ({"auth": {"apiKeys": ["a"], "existingSecret": "s"}}, "auth.apiKeys"),
        ({"autoscaling": {"enabled": True, "minReplicas": 5}}, "autoscaling.minReplicas is 5"),
        ({"httpRoute": {"enabled": True, "useInferencePool": True}}, "httpRoute.useInferencePool"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
        ({"ingress": {"enabled": True}}, "ingress.hosts"),
        ({"cache": {"persistence": {"enabled": True}}, "replicaCount": 2}, "cache.persistence.accessModes"),
        (
            {"kind": "StatefulSet", "cache": {"persistence": {"enabled": True, "existingClaim": "c"}}},
            "cache.persistence.existingClaim",
        ),
        (
            {"dataParallelSize": 3},
            "dataParallelSize is 3: with tensorParallelSize 1 and pipeline.size 1 it needs 3 NeuronC",
        ),
        ({"tensorParallelSize": 2, "dataParallelSize": 2}, "dataParallelSize is 2: with tensorParallelSize 2"),
        (
            {"accelerator": {"type": "neuron", "count": 1}, "tensorParallelSize": 2},
            "accelerator.count is 1: 1 aws.amazon.com/neuroncore have fewer than the 2 NeuronCores",
        ),
        (
            {"accelerator": {"type": "neuron", "count": 2, "resourceName": "aws.amazon.com/neuron"}},
            "accelerator.count is 2: inf2.xlarge has 2 NeuronCores, so no node has that many aws.amazon.com/neuron",
        ),
        ({"price": {"basis": "spot"}}, "price.basis is spot: it needs price.spotDiscount or price.hourlyUsd"),
        ({"resources": {"requests": {"memory": "8Gi"}}}, "resources.requests.memory is 8Gi: it must be at most"),
        ({"resources": {"limits": {"cpu": "1500m"}}}, "resources.requests.cpu is 2: it must be at most"),
        ({"serviceMonitor": {"interval": "5s"}}, "serviceMonitor.scrapeTimeout is 10s: it must be at most"),
        ({"strategy": {"type": "OnDelete"}}, "strategy.type is OnDelete: a Deployment does not have it"),
        ({"kind": "StatefulSet", "strategy": {"type": "Recreate"}}, "strategy.type is Recreate: a StatefulSet does"),
        ({"kind": "StatefulSet", "strategy": {"rollingUpdate": {"maxSurge": 1}}}, "strategy.rollingUpdate.maxSurge"),
        ({"strategy": {"rollingUpdate": {"partition": 1}}}, "strategy.rollingUpdate.partition: a Deployment"),
        ({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}, "strategy.rollingUpdate: strategy.type"),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": 0}}},
            "strategy.rollingUpdate.maxUnavailable is 0",
        ),
        ({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}, "rollingUpdate.maxUnavailable is 0"),
        ({"env": [{"name": "HOME", "value": "/x"}]}, 'env: there are two with the name "HOME"'),
        ({"env": [{"name": "A"}, {"name": "A", "value": "1"}]}, 'env: there are two with the name "A"'),
        ({"env": [{"name": "NEURONSERVE_PACE", "value": "host"}]}, "env: NEURONSERVE_PACE is set by engine.pace"),
        (
            {"extraContainers": [{"name": "server", "image": "x"}]},
            'extraContainers: there are two with the name "server"',
        ),
        ({"extraVolumes": [{"name": "tmp"}]}, 'extraVolumes: there are two with the name "tmp"'),
        ({"extraVolumeMounts": [{"name": "x", "mountPath": "/cache"}]}, 'two with the mountPath "/cache"'),
        ({"extraArgs": ["--no-enable-prefix-caching"]}, "is set by engine.enablePrefixCaching"),
        ({"extraArgs": ["--pace", "device"]}, "extraArgs: --pace is set by engine.pace"),
        ({"extraArgs": ["--port=1"]}, "extraArgs: --port is set by server.port"),
        ({"server": {"port": 8081}}, "server.healthPort is 8081: it must differ from server.port"),
        ({"extraArgs": ["--tensor-parallel-size", "2"]}, "--tensor-parallel-size is set by tensorParallelSize"),
        ({"pipeline": {"size": 3}}, "dataParallelSize is 1: with tensorParallelSize 1 and pipeline.size 3 it needs 3"),
        ({"router": {"extraArgs": ["--port", "1"]}}, "router.extraArgs: --port is set by the chart"),
        (
            {"inferencePool": {"endpointPicker": {"extraArgs": ["--metrics-port=1"]}}},
            "inferencePool.endpointPicker.extraArgs: --metrics-port is set by the chart",
        ),
        ({"mode": "router", "inferencePool": {"enabled": True}}, "inferencePool.enabled is true: in mode router a rou"),
        (RAY | {"autoscaling": {"enabled": True}}, "autoscaling.enabled is true: mode rayservice has the workers of"),
        (RAY | {"kind": "StatefulSet"}, "kind is StatefulSet: mode rayservice has pods of its own"),
        (RAY | {"extraArgs": ["--seed=1"]}, "extraArgs is --seed=1: mode rayservice has no command line"),
        (RAY | {"strategy": {"type": "Recreate"}}, "strategy: mode rayservice has ray.upgradeType"),
        (RAY | {"tls": {"existingSecret": "s"}}, "tls.existingSecret is s: Ray Serve speaks plain HTTP"),
        (RAY | {"networkPolicy": {"enabled": True}}, "networkPolicy.enabled is true: Ray's nodes and its operator"),
        (RAY | {"serviceMonitor": {"enabled": True}}, "serviceMonitor.enabled, auth.metricsSecret: in mode rayservice"),
        (RAY | {"pdb": {"maxUnavailable": "50%"}}, "pdb.maxUnavailable is 50%: in mode rayservice it must be a number"),
        (GROUPS | {"kind": "StatefulSet"}, "kind is StatefulSet: mode leaderworkerset has pods of its own"),
        (GROUPS | {"pipeline": {"existingSecret": "s"}}, "pipeline.size is 1: mode leaderworkerset needs at least 2"),
        (GROUPS | {"pipeline": {"size": 2}}, "pipeline.existingSecret: name the Secret with the key"),
        (GROUPS | {"dataParallelSize": 2}, "dataParallelSize is 2: a stage of mode leaderworkerset computes for one"),
        (GROUPS | {"model": {"name": "a/b", "revision": "v1"}}, "model.revision is v1: stages of mode leaderworkerset"),
        (GROUPS | {"server": {"host": "::"}}, "server.host is ::: stages of mode leaderworkerset listen on IPv4"),
        (GROUPS | {"strategy": {"type": "Recreate"}}, "strategy.type is Recreate: a LeaderWorkerSet does not have it"),
        (GROUPS | {"cache": {"persistence": {"enabled": True}}}, "cache.persistence.accessModes: several pods"),
    ],
)
def test_values_that_contradict_each_other_are_refused_with_the_key(helm: str, values: Manifest, key: str) -> None:
    assert key in refusal(helm, values)


@pytest.mark.parametrize("key", ["price", "engine.pace", "probes.startup.periodSeconds", "autoscaling.keda", "tests"])
def test_a_key_that_is_taken_away_is_missed(helm: str, key: str) -> None:
    """`--set key=null` removes a key, and so does `helm upgrade --reuse-values` from an older chart."""
    said = refusal(helm, nested(key, None))
    assert key.rpartition(".")[2] in said
    assert "missing propert" in said or "is required" in said


def test_an_environment_variable_must_be_text(helm: str) -> None:
    said = refusal(helm, {"env": [{"name": "OMP_NUM_THREADS", "value": 1}]})
    assert "env" in said
    assert "string" in said


@pytest.mark.parametrize(
    "values",
    [
        {"resources": {"requests": {"cpu": "500m", "memory": "2097152Ki"}, "limits": {"cpu": 0.5, "memory": "2Gi"}}},
        {"resources": {"requests": {"memory": 1000000000}, "limits": {"memory": "1e9"}}},
        {"resources": {"requests": None, "limits": None}},
        {"strategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        {"strategy": {"type": "Recreate"}},
        {"serviceMonitor": {"interval": "1m", "scrapeTimeout": "59s999ms"}},
        {"env": [{"name": "NEURONSERVE_CATALOG", "value": "/etc/parts.toml"}]},
        {"device": "inf2.48xlarge", "tensorParallelSize": 8, "dataParallelSize": 3},
        {"price": {"basis": "spot", "spotDiscount": 0}},
    ],
)
def test_values_at_the_edge_are_accepted(helm: str, values: Manifest) -> None:
    assert template(helm, values=values)


def test_every_value_that_becomes_a_setting_is_refused_as_an_argument() -> None:
    """The chart's table of flags holds each setting that it writes."""
    helpers = (CHART / "templates" / "_checks.tpl").read_text()
    table = yaml.safe_load(helpers.partition('"neuronserve.owned" -}}')[2].partition("{{- end }}")[0])
    for case in ("all", "neuron"):
        settings = yaml.safe_load(settings_text(golden(case)))
        assert {name.replace("_", "-") for name in settings} <= set(table)
