"""An operator changes his mind about a release that runs: no pod is lost that he did not give up, and what an API
server would refuse half-way is refused before anything has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import Manifest, of_kind, only, workload
from tests.deploy.cluster import ApiServer, Conflict, Refusal, Release, managed
from tests.deploy.test_refusals import GROUPS, RAY

SCALED: Manifest = {"autoscaling": {"enabled": True, "minReplicas": 1}}
OTHER: Manifest = {"engine": {"maxNumSeqs": 8}}
HPA = "kube-controller-manager"
SET: Manifest = {"kind": "StatefulSet"}
OF_KIND: dict[str, Manifest] = {"Deployment": {}, "StatefulSet": SET, "LeaderWorkerSet": GROUPS}
KEPT: Manifest = SET | {"cache": {"persistence": {"enabled": True}}}


@pytest.fixture
def release(helm: str, tmp_path: Path) -> Iterator[Release]:
    with ApiServer(tmp_path) as server:
        yield Release(helm, server)


def refused(release: Release, values: Manifest) -> str:
    """Return helm's refusal of an upgrade, which must change nothing."""
    with pytest.raises(Refusal) as refusal:
        release.upgrade(values)
    return str(refusal.value)


@pytest.mark.parametrize("kind", OF_KIND)
def test_turning_autoscaling_on_and_off_again_loses_no_pod(release: Release, kind: str, helm: str) -> None:
    base = OF_KIND[kind]
    assert release.upgrade(base | {"replicaCount": 3}) == 3
    assert release.upgrade(base | SCALED | {"replicaCount": 3}) == 3
    assert release.upgrade(base | SCALED | OTHER) == 3  # before the autoscaler has moved
    release.scale(5, HPA)
    assert release.upgrade(base | SCALED) == 5
    release.scale(6, HPA)
    assert release.upgrade(base | SCALED | OTHER) == 6
    assert release.upgrade(base) == 6  # off, and the number is left as it is
    said = refused(release, base | {"replicaCount": 3})
    object_ = f"{kind.lower()}/rel-neuronserve"
    if "helm-3" in helm:
        assert f"replicaCount is 3: {HPA} has set the replicas of {object_} to 6" in said
    else:  # which has left the number out since the autoscaler took it
        assert f"replicaCount is 3: {object_} has 6, and its manifests leave the number to the cluster" in said
    assert release.upgrade(base | {"replicaCount": 6}) == 6


@pytest.mark.parametrize("kind", OF_KIND)
def test_a_number_that_nobody_set_is_left_to_kubectl_and_to_autoscalers(release: Release, kind: str) -> None:
    """The default: the manifests never hold it, so rollbacks do not bring an old one back either."""
    base = OF_KIND[kind]
    assert release.upgrade(base) == 1
    release.scale(3)
    assert release.upgrade(base | OTHER) == 3
    assert release.rollback(1) == 3
    assert release.upgrade(base | SCALED) == 3
    release.scale(5, HPA)
    assert release.upgrade(base | SCALED | OTHER) == 5
    assert release.rollback(1) == 5
    assert release.upgrade(base | {"replicaCount": 5}) == 5  # the number that is there
    assert release.rollback(1) == 5
    assert all("replicas" not in manifest["spec"] for manifest in release.revisions)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize(("first", "there", "wanted"), [({}, 5, 2), ({}, 1, 5), (SCALED, 3, 4), ({}, 2, 0)])
def test_a_number_that_was_left_to_the_cluster_is_not_taken_back(
    release: Release, helm: str, kind: str, first: Manifest, there: int, wanted: int
) -> None:
    """Under Helm 4 no manager of it is recorded; and from a manifest with it, a rollback to one without loses pods."""
    base = {"kind": kind}
    release.upgrade(base | first)
    release.scale(there, HPA if first else "kubectl")
    is_recorded = any("subresource" in each for each in release.live["metadata"]["managedFields"])
    assert is_recorded == ("helm-3" in helm and there != 1)
    said = refused(release, base | {"replicaCount": wanted})
    assert f"has {there}, and its manifests leave the number to the cluster" in said
    assert f"Upgrade with replicaCount {there} or null" in said
    assert f"kubectl -n ns scale {kind.lower()}/rel-neuronserve --replicas={wanted}" in said
    assert release.upgrade(base) == there  # the remedy
    release.scale(wanted)
    assert release.upgrade(base | {"replicaCount": wanted}) == wanted
    assert release.rollback(1) == wanted


def test_a_rollback_to_a_manifest_without_the_number_would_begin_with_one_pod(release: Release) -> None:
    """The rule of both Helms that the refusal above is for."""
    release.upgrade({})
    del release.live["metadata"]["annotations"]["neuronserve/replicas"]
    assert release.upgrade({"replicaCount": 5}) == 5
    assert release.rollback(1) == 1


def test_a_number_that_was_scaled_by_hand_is_not_taken_back_half_way(release: Release) -> None:
    release.upgrade({"replicaCount": 1})
    release.scale(3)
    said = refused(release, {"replicaCount": 1} | OTHER)
    assert "replicaCount is 1: kubectl has set the replicas of deployment/rel-neuronserve to 3" in said
    assert "Keep them with replicaCount 3 or null" in said
    assert "kubectl -n ns scale deployment/rel-neuronserve --replicas=1" in said
    assert release.pods == 3
    assert len(release.revisions) == 1
    assert release.upgrade({"replicaCount": 3} | OTHER) == 3  # the first remedy
    assert release.upgrade({"replicaCount": None}) == 3
    release.scale(1)
    assert release.upgrade({"replicaCount": 1}) == 1  # the second


@pytest.mark.parametrize("program", ["helm", "helm-controller", "terraform-provider-helm_v3.0.2"])
def test_a_number_of_ones_own_is_changed_without_a_word(helm: str, tmp_path: Path, program: str) -> None:
    with ApiServer(tmp_path) as server:
        release = Release(helm, server, program)
        assert [release.upgrade({"replicaCount": count}) for count in (2, 4, 1)] == [2, 4, 1]


def test_helm_3_adds_the_pods_that_are_asked_for(release: Release, helm: str) -> None:
    """Helm 4 would meet a conflict, and is told to scale first."""
    release.upgrade({"replicaCount": 1})
    release.scale(2)
    if "helm-3" in helm:
        assert release.upgrade({"replicaCount": 4}) == 4
    else:
        assert "replicaCount is 4" in refused(release, {"replicaCount": 4})


def test_a_release_that_helm_3_began_meets_no_conflicts(release: Release) -> None:
    """Helm 4 goes on as it was begun."""
    release.applies = False
    release.upgrade({"replicaCount": 1})
    release.scale(2)
    assert release.upgrade({"replicaCount": 4}) == 4
    assert release.upgrade(SCALED) == 4
    release.scale(5, HPA)
    assert release.upgrade(SCALED | OTHER) == 5
    assert release.upgrade({"strategy": {"type": "Recreate"}}) == 5


def test_rolling_back_over_a_change_of_scaler_is_what_the_guide_says(release: Release, helm: str) -> None:
    """A rollback renders nothing: Helm 3 brings the recorded number back, Helm 4 stops at the conflict, unchanged."""
    release.upgrade({"replicaCount": 3})
    release.upgrade(SCALED)
    release.scale(5, HPA)
    if "helm-3" in helm:
        assert release.rollback(1) == 3
    else:
        with pytest.raises(Conflict):
            release.rollback(1)
        assert release.pods == 5


def test_a_workload_that_is_made_anew_starts_with_the_number_that_is_given(release: Release) -> None:
    values = SCALED | {"replicaCount": 4}
    assert workload(release.render(values))["spec"]["replicas"] == 4
    assert (
        "replicas" not in workload(release.render(values, is_upgrade=False))["spec"]
    )  # continuous delivery renders so


def test_an_autoscaler_is_not_left_asleep_at_no_pods(release: Release) -> None:
    release.upgrade({"replicaCount": 0})
    assert release.upgrade(SCALED) == 1


def test_an_autoscaler_is_not_put_on_no_pods_that_were_left_to_the_cluster(release: Release) -> None:
    release.upgrade({})
    release.scale(0)
    assert "First run kubectl -n ns scale deployment/rel-neuronserve --replicas=1" in refused(release, SCALED)


CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "rel-neuronserve-cache", "namespace": "ns"},
}
CLASS = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gp3"}}
MADE = {"accessModes": ["ReadWriteOnce"], "storageClassName": "gp3", "resources": {"requests": {"storage": "20Gi"}}}


@pytest.mark.parametrize(
    ("before", "after", "limit"),
    [
        (SET, KEPT, "cache.persistence.enabled is true: statefulset/rel-neuronserve was made without volumes"),
        (KEPT, SET, "cache.persistence.enabled is false: statefulset/rel-neuronserve was made with volumes"),
        (KEPT, {"accessModes": ["ReadWriteMany"]}, "cache.persistence.accessModes is ReadWriteMany: the volumes of"),
        (
            KEPT,
            {"size": "40Gi"},
            "cache.persistence.size is 40Gi: the volumes of statefulset/rel-neuronserve have 20Gi",
        ),
        (KEPT, {"storageClass": "gp3"}, 'cache.persistence.storageClass is "gp3": the volumes of'),
    ],
)
def test_volumes_of_a_stateful_set_are_not_changed_half_way(
    release: Release, before: Manifest, after: Manifest, limit: str
) -> None:
    release.upgrade(before | {"replicaCount": 2})
    changed = after if "kind" in after else SET | {"cache": {"persistence": {"enabled": True} | after}}
    said = refused(release, changed)
    assert limit in said
    assert "delete statefulset/rel-neuronserve --cascade=orphan" in said
    assert "upgrade with replicaCount 2" in said


@pytest.mark.parametrize(
    ("persistence", "limit"),
    [
        ({"accessModes": ["ReadWriteMany"]}, "cache.persistence.accessModes is ReadWriteMany"),
        ({"storageClass": "efs"}, 'cache.persistence.storageClass is "efs"'),
        (
            {"size": "10Gi"},
            "cache.persistence.size is 10Gi: the volumes of persistentvolumeclaim/rel-neuronserve-cache have",
        ),
        ({"size": "40Gi"}, None),  # a bound claim of such a class may grow
        ({}, None),
    ],
)
def test_a_claim_is_not_changed_half_way(release: Release, persistence: Manifest, limit: str | None) -> None:
    release.server.put(CLAIM | {"spec": MADE, "status": {"phase": "Bound"}})
    release.server.put(CLASS | {"allowVolumeExpansion": True})
    values = {"cache": {"persistence": {"enabled": True} | persistence}}
    if limit is None:
        made = only(release.render(values), "PersistentVolumeClaim")
        assert made["spec"]["storageClassName"] == "gp3"  # that it has, and cannot lose
    else:
        said = refused(release, values)
        assert limit in said
        assert "cache.persistence.existingClaim" in said


@pytest.mark.parametrize(
    ("phase", "grows", "limit"),
    [
        ("Pending", True, "only a bound claim grows"),
        ("Lost", True, "only a bound claim grows"),
        ("Bound", False, 'its StorageClass "gp3" does not allow it to grow'),
    ],
)
def test_a_claim_that_cannot_grow_is_left_alone_with_the_secret(
    release: Release, phase: str, grows: bool, limit: str
) -> None:
    release.server.put(CLAIM | {"spec": MADE, "status": {"phase": phase}})
    release.server.put(CLASS | {"allowVolumeExpansion": grows})
    values = {"cache": {"persistence": {"enabled": True, "size": "40Gi"}}, "auth": {"apiKeys": ["k"]}}
    said = refused(release, values)
    assert "cache.persistence.size is 40Gi: persistentvolumeclaim/rel-neuronserve-cache has 20Gi, and" in said
    assert limit in said


def defaulted(release: Release, **strategy: Any) -> None:
    """The live strategy, with what an API server fills in."""
    field = "strategy" if release.live["kind"] == "Deployment" else "updateStrategy"
    release.live["spec"][field] = strategy


def test_recreate_comes_with_the_patch_that_helm_4_needs(release: Release, helm: str) -> None:
    release.upgrade({})
    recreate = {"strategy": {"type": "Recreate"}}
    if "helm-4" in helm:
        said = refused(release, recreate)
        assert "strategy.type is Recreate" in said
        assert "kubectl -n ns patch deployment/rel-neuronserve --type=merge -p" in said
        assert '\'{"spec":{"strategy":{"rollingUpdate":null,"type":"Recreate"}}}\'' in said
        defaulted(release, type="Recreate")  # the remedy
        release.live["metadata"]["managedFields"].append(
            managed("kubectl-patch", "Update", ["strategy"], {"f:type": {}})
        )
    assert release.upgrade(recreate) == 1
    if "helm-4" in helm:
        said = refused(release, {})  # and back: the field has another manager now
        assert "deployment/rel-neuronserve: kubectl-patch has set spec.strategy.type, and Helm would stop there" in said


def test_a_stateful_set_leaves_rolling_updates_by_a_patch(release: Release) -> None:
    release.upgrade(SET)
    defaulted(release, type="RollingUpdate", rollingUpdate={"partition": 0})
    assert "strategy.type is OnDelete" in refused(release, SET | {"strategy": {"type": "OnDelete"}})


@pytest.mark.parametrize("name", [{"nameOverride": "other"}, {"nameOverride": "other", "commonLabels": {"a": "b"}}])
def test_names_change_beside_a_fixed_prefix_and_selectors_do_not(release: Release, name: Manifest) -> None:
    fixed = {"fullnameOverride": "rel-neuronserve"}
    release.upgrade(fixed)
    before = release.live["spec"]["selector"]
    release.upgrade(fixed | name)
    assert release.live["spec"]["selector"] == before


def test_a_workload_of_another_release_is_not_given_up_to_this_one(release: Release) -> None:
    release.upgrade({})
    release.live["metadata"]["annotations"]["meta.helm.sh/release-name"] = "other"
    release.live["spec"]["selector"]["matchLabels"]["app.kubernetes.io/instance"] = "other"
    said = refused(release, {"replicaCount": 3})
    assert "fullnameOverride: deployment/rel-neuronserve is of the release other; choose a name" in said
    assert "delete" not in said


def test_a_workload_of_another_selector_is_not_touched(release: Release) -> None:
    release.upgrade({})
    release.live["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] = "old"
    assert "selectors never change" in refused(release, {})


def test_keda_is_not_put_beside_an_autoscaler_that_is_there(release: Release) -> None:
    (scaler,) = of_kind(release.render(SCALED), "HorizontalPodAutoscaler")
    keda = {"autoscaling": {"enabled": True, "type": "keda"}}
    assert of_kind(release.render(keda), "ScaledObject")
    release.server.put(scaler)
    assert "autoscaling.type is keda" in refused(release, keda)


@pytest.mark.parametrize(("version", "is_refused"), [("1.32.0", True), ("1.36.0", False)])
def test_the_history_of_a_stateful_set_changes_from_1_33_on(
    helm: str, tmp_path: Path, version: str, is_refused: bool
) -> None:
    with ApiServer(tmp_path, version) as server:
        release = Release(helm, server)
        release.upgrade(SET)
        if is_refused:
            said = refused(release, SET | {"revisionHistoryLimit": 3})
            assert "revisionHistoryLimit is 3: before Kubernetes 1.33" in said
        else:
            release.upgrade(SET | {"revisionHistoryLimit": 3})


def test_a_release_of_another_mode_has_the_pods_that_it_asks_for(release: Release) -> None:
    assert release.upgrade({"replicaCount": 3}) == 3
    workers = [only(release.render(RAY | {"replicaCount": count}), "RayService") for count in (3, 5)]
    groups = [each["spec"]["rayClusterConfig"]["workerGroupSpecs"][0] for each in workers]
    assert [(each["replicas"], each["minReplicas"], each["maxReplicas"]) for each in groups] == [(3, 3, 3), (5, 5, 5)]
    release.server.put(workers[0])
    assert only(release.render(RAY | {"replicaCount": 5}), "RayService") == workers[1]
    assert workload(release.render(GROUPS | {"replicaCount": 2}))["spec"]["replicas"] == 2
