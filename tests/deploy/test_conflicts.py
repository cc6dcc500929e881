"""Helm 4 and values that kubectl has set: the conflict is named before any object has changed, with the command that
ends it, and other values of other managers stop nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.chart import Manifest, of_kind, server_container, workload
from tests.deploy.cluster import ApiServer, Refusal, Release, managed

KEYS: Manifest = {"auth": {"apiKeys": ["old"]}}
POD = "spec.template"
SERVER = 'k:{"name":"server"}'
PORT = 'k:{"containerPort":8000,"protocol":"TCP"}'


@pytest.fixture
def release(helm: str, tmp_path: Path) -> Iterator[Release]:
    if "helm-3" in helm:
        pytest.skip("Helm 3 knows no managers of fields")
    with ApiServer(tmp_path) as server:
        release = Release(helm, server)
        release.upgrade(KEYS)
        yield release


def owned(*path: str) -> Manifest:
    """fieldsV1 with one field."""
    fields: Manifest = {}
    for part in reversed(path):
        fields = {part: fields}
    return fields


def undone(release: Release, manager: str, *path: str) -> None:
    """Let kubectl manage a field of the live workload."""
    entry = managed(manager, "Update", []) | {"fieldsV1": owned(*path)}
    release.live["metadata"]["managedFields"].append(entry)


def said_to(release: Release, values: Manifest) -> str:
    with pytest.raises(Refusal) as refusal:
        release.upgrade(values)
    return str(refusal.value)


def obeyed(release: Release, said: str) -> None:
    """Carry out the JSON patch that a refusal prints."""
    (patch,) = re.findall(r"--type=json -p '([^']+)'", said)
    entries = release.live["metadata"]["managedFields"]
    for step in json.loads(patch):
        index = int(step["path"].split("/")[3])
        if step["op"] == "test":
            assert entries[index]["manager"] == step["value"]
        else:
            del entries[index]


def test_settings_that_rollout_undo_brought_back_are_named_before_the_secret_changes(release: Release) -> None:
    annotations = release.live["spec"]["template"]["metadata"]["annotations"]
    annotations["neuronserve/config.yaml"] = "older"
    undone(release, "kubectl", "f:spec", "f:template", "f:metadata", "f:annotations", "f:neuronserve/config.yaml")
    new = {"auth": {"apiKeys": ["new"]}}
    said = said_to(release, new)
    assert f"deployment/rel-neuronserve: kubectl has set {POD}.metadata.annotations.neuronserve/config.yaml" in said
    obeyed(release, said)
    assert release.upgrade(new) == 1


def test_items_of_lists_are_found_by_their_keys_and_all_managers_are_named(release: Release) -> None:
    spec = release.live["spec"]["template"]["spec"]
    server = server_container((release.live,))
    server["image"], server["ports"][0]["name"], spec["terminationGracePeriodSeconds"] = "other:1", "web", 1
    container = ("f:spec", "f:template", "f:spec", "f:containers", SERVER)
    undone(release, "kubectl-set", *container, "f:image")
    undone(release, "kubectl-edit", *container, "f:ports", PORT, "f:name")
    undone(release, "kubectl-edit", "f:spec", "f:template", "f:spec", "f:terminationGracePeriodSeconds")
    said = said_to(release, KEYS)
    assert f"kubectl-set has set {POD}.spec.containers.server.image; " in said
    assert f"kubectl-edit has set {POD}.spec.containers.server.ports.8000/TCP.name; " in said
    assert f"kubectl-edit has set {POD}.spec.terminationGracePeriodSeconds, and" in said
    obeyed(release, said)
    assert release.upgrade(KEYS) == 1


def test_the_same_value_and_fields_that_the_chart_leaves_out_are_no_conflict(release: Release) -> None:
    release.live["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"] = "now"
    release.live["spec"]["paused"] = True
    below = ("f:spec", "f:template", "f:metadata", "f:annotations")
    undone(release, "kubectl-rollout", *below, "f:kubectl.kubernetes.io/restartedAt")
    undone(release, "kubectl", "f:spec", "f:paused")
    undone(release, "kubectl-set", "f:spec", "f:template", "f:spec", "f:containers", SERVER, "f:image")
    assert release.upgrade(KEYS) == 1


@pytest.mark.parametrize("kind", ["Service", "Secret", "PodDisruptionBudget", "ServiceAccount", "NetworkPolicy"])
def test_every_object_of_the_release_is_looked_at(release: Release, kind: str) -> None:
    values = KEYS | {"networkPolicy": {"enabled": True}}
    live = of_kind(release.render(values), kind)[0]
    live["metadata"]["labels"]["helm.sh/chart"] = "mine"
    live["metadata"]["managedFields"] = [
        managed("helm", "Apply", []),
        managed("kubectl-label", "Update", []) | {"fieldsV1": owned("f:metadata", "f:labels", "f:helm.sh/chart")},
    ]
    release.server.put(live)
    said = said_to(release, values)
    assert f"{kind.lower()}/rel-neuronserve: kubectl-label has set metadata.labels.helm.sh/chart" in said


def test_an_object_that_helm_did_not_apply_on_the_server_has_no_conflicts(release: Release) -> None:
    release.applies = False
    release.upgrade(KEYS)
    workload((release.live,))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    undone(release, "kubectl-edit", "f:spec", "f:template", "f:spec", "f:terminationGracePeriodSeconds")
    assert release.upgrade(KEYS) == 1
