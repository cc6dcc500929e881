"""The chart as tests see it: values in helm/ci, the manifests they make in helm/golden, and helm where it is installed.

`python -m tests.deploy.chart` writes the golden manifests anew.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm"
CASES = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
HELM_VERSIONS = ("3.19.0", "4.1.4")
KUBERNETES = "1.34.0"  # that the golden manifests are for
RELEASE, NAMESPACE = "rel", "ns"
SETTINGS = "neuronserve/config.yaml"
OF_RAY = {"distributed", "num_replicas"}  # settings of `neuronserve serve` on a Ray cluster
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet", "RayService")
ON_SERVERS = tuple(
    case for case in CASES if case != "rayservice"
)  # cases whose pods run `neuronserve serve` themselves

Manifest = dict[str, Any]


def values_file(case: str) -> Path:
    return CHART / "ci" / f"{case}-values.yaml"


def values(case: str) -> Manifest:
    loaded: Manifest = yaml.safe_load(values_file(case).read_text())
    return loaded


def walk(node: Any) -> Iterator[tuple[str, Any]]:
    """Every (key, value) of a document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield str(key), value
        yield from walk(value)


def golden_file(case: str) -> Path:
    return CHART / "golden" / f"{case}.yaml"


@cache
def golden(case: str) -> tuple[Manifest, ...]:
    """The manifests of one case."""
    return manifests(golden_file(case).read_text())


def manifests(text: str) -> tuple[Manifest, ...]:
    return tuple(document for document in yaml.safe_load_all(text) if document)


def of_kind(documents: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    return [document for document in documents if document["kind"] in kinds]


def only(documents: tuple[Manifest, ...], *kinds: str) -> Manifest:
    (document,) = of_kind(documents, *kinds)
    return document


def component(document: Manifest) -> str:
    return str(document["metadata"].get("labels", {}).get("app.kubernetes.io/component"))


def workload(documents: tuple[Manifest, ...]) -> Manifest:
    """The object whose pods are the servers."""
    return only(tuple(each for each in documents if component(each) == "server"), *WORKLOADS)


def templates(document: Manifest) -> list[Manifest]:
    """The pods' templates of a workload: the servers' first, or of a RayService the workers'."""
    spec = document["spec"]
    if document["kind"] == "LeaderWorkerSet":
        return [spec["leaderWorkerTemplate"][f"{part}Template"] for part in ("leader", "worker")]
    if document["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        return [each["template"] for each in (*cluster["workerGroupSpecs"], cluster["headGroupSpec"])]
    return [spec["template"]]


def pods(documents: tuple[Manifest, ...]) -> list[Manifest]:
    """Every pod or template of one that the chart makes, the servers' first."""
    others = [each for each in of_kind(documents, *WORKLOADS) if each != workload(documents)]
    made = [template for each in (workload(documents), *others) for template in templates(each)]
    return made + of_kind(documents, "Pod")


def pod_specs(documents: tuple[Manifest, ...]) -> Iterator[Manifest]:
    yield from (pod["spec"] for pod in pods(documents))


def front(documents: tuple[Manifest, ...]) -> Manifest:
    """The Service that clients call."""
    made = workload(documents)["spec"].get("serveService")  # by Ray's operator
    return made or only(tuple(each for each in of_kind(documents, "Service") if "type" in each["spec"]), "Service")


def server_container(documents: tuple[Manifest, ...]) -> Manifest:
    containers: list[Manifest] = pods(documents)[0]["spec"]["containers"]
    return containers[0]


def settings_text(documents: tuple[Manifest, ...]) -> str:
    """The server's settings as YAML: an annotation of the pods that they mount as a file, or Ray's arguments."""
    if workload(documents)["kind"] == "RayService":
        (application,) = yaml.safe_load(workload(documents)["spec"]["serveConfigV2"])["applications"]
        return yaml.safe_dump({name: each for name, each in application["args"].items() if name not in OF_RAY})
    return str(pods(documents)[0]["metadata"]["annotations"][SETTINGS])


def with_settings(documents: tuple[Manifest, ...], **changes: object) -> tuple[Manifest, ...]:
    """The manifests with lines of the server's settings replaced."""
    changed = copy.deepcopy(documents)
    annotations = pods(changed)[0]["metadata"]["annotations"]
    annotations[SETTINGS] = yaml.safe_dump(yaml.safe_load(annotations[SETTINGS]) | changes)
    return changed


def expressions() -> Iterator[str]:
    """Every PromQL expression of the dashboard, the alerts and the scaler."""
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable)
    for group in only(golden("keda"), "PrometheusRule")["spec"]["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    yield from (trigger["metadata"]["query"] for trigger in only(golden("keda"), "ScaledObject")["spec"]["triggers"])


def asked_series() -> dict[str, set[str]]:
    """The server's series that these ask for, and the labels that they choose by."""
    asked: dict[str, set[str]] = {}
    for text in expressions():
        for name, labels in re.findall(r"\b((?:vllm:|neuronserve:|http_)\w+)(?:\{([^}]*)\})?", text):
            asked.setdefault(name, set()).update(re.findall(r"(\w+)(?:=~|!~|!=|=)\"", labels))
    return asked


def tool(name: str) -> str:
    """Path of a program of `make helm-test`; without it the test is skipped, or fails where HELM_TEST asks for it."""
    found = shutil.which(name)
    if found is None and os.environ.get("HELM_TEST"):
        pytest.fail(f"{name} is not on PATH")
    if found is None:
        pytest.skip(f"{name} is not on PATH; `make helm-test` installs it")
    return found


def run_helm(helm: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, offline: no cluster, no repositories."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    return subprocess.run(
        [helm, *arguments], input=stdin, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def template(helm: str, *arguments: str, values: Manifest | None = None) -> str:
    """Return the output of `helm template` for `values`."""
    ran = _template(helm, *arguments, values=values)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def refusal(helm: str, values: Manifest) -> str:
    """Return helm's refusal of `values`."""
    ran = _template(helm, values=values)
    assert ran.returncode != 0, f"{values} were accepted"
    return ran.stderr


def _template(helm: str, *arguments: str, values: Manifest | None) -> subprocess.CompletedProcess[str]:
    common = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-")
    kubernetes = () if "--kube-version" in arguments else ("--kube-version", KUBERNETES)
    return run_helm(helm, *common, *kubernetes, *arguments, stdin=yaml.safe_dump(values or {}))


def main() -> int:
    """Write the golden manifests with the newest helm on PATH."""
    helm = shutil.which(f"helm-{HELM_VERSIONS[-1]}") or shutil.which("helm")
    if helm is None:
        print("no helm on PATH", file=sys.stderr)
        return 1
    for case in CASES:
        values = yaml.safe_load(values_file(case).read_text())
        golden_file(case).write_text(template(helm, values=values))
    return 0


if __name__ == "__main__":
    sys.exit(main())
