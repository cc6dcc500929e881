"""Stand-in cluster for a chart: an API server that answers `lookup`, and the changes of a workload's number of pods.

The server is real HTTP that helm reads with --dry-run=server; it answers GET alone. Applying a manifest is modelled,
for `spec.replicas` only, as Kubernetes 1.36 did with both Helms: Helm 3 merges the last manifest, the next one and the
live object; Helm 4 applies on the server, where each field has managers, and a value that another manager has set is a
conflict. The server records who scales only where the number has a manager already.
"""

from __future__ import annotations

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.deploy.chart import CHART, NAMESPACE, RELEASE, Manifest, manifests, run_helm, workload

KINDS = {  # group and version: kind, resource
    "v1": {
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "ConfigMap": "configmaps",
    },
    "apps/v1": {"Deployment": "deployments", "StatefulSet": "statefulsets"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "storage.k8s.io/v1": {"StorageClass": "storageclasses"},
    "keda.sh/v1alpha1": {"ScaledObject": "scaledobjects"},
    "leaderworkerset.x-k8s.io/v1": {"LeaderWorkerSet": "leaderworkersets"},
    "ray.io/v1": {"RayService": "rayservices"},
}


CLUSTER_WIDE = {"StorageClass"}


class ApiServer:
    """Answers what is in `objects`. Use it as a context, and `kubeconfig` to reach it."""

    def __init__(self, directory: Path, version: str = "1.36.0") -> None:
        self.objects: dict[str, Manifest] = {}
        self.version = version
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.kubeconfig = directory / "kubeconfig"
        url = f"http://127.0.0.1:{self._server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": url}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {}}],
            "current-context": "it",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __enter__(self) -> ApiServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, document: Manifest) -> None:
        """Let the server have this object."""
        resource = KINDS[document["apiVersion"]][document["kind"]]
        space = "" if document["kind"] in CLUSTER_WIDE else f"/namespaces/{NAMESPACE}"
        self.objects[f"{base(document['apiVersion'])}{space}/{resource}/{name(document)}"] = document

    def answer(self, path: str) -> Manifest | None:
        """Return the object at a path."""
        if path == "/version":
            return {"major": "1", "minor": self.version.split(".")[1], "gitVersion": f"v{self.version}"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [
                {
                    "name": each.partition("/")[0],
                    "versions": [{"groupVersion": each, "version": each.partition("/")[2]}],
                }
                for each in KINDS
                if "/" in each
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        for version, kinds in KINDS.items():
            if path == base(version):
                resources = [
                    {
                        "name": plural,
                        "singularName": "",
                        "kind": kind,
                        "namespaced": kind not in CLUSTER_WIDE,
                        "verbs": ["get"],
                    }
                    for kind, plural in kinds.items()
                ]
                return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        return self.objects.get(path)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = server.answer(self.path.partition("?")[0])
                missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
                body = json.dumps(found or missing).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def base(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def name(document: Manifest) -> str:
    return str(document["metadata"]["name"])


class Refusal(Exception):
    """Helm has refused to render."""


class Conflict(Exception):
    """The API server has refused what Helm 4 applied."""


class Release:
    """A release of the chart under one helm: what was applied, and the live workload."""

    def __init__(self, helm: str, server: ApiServer, manager: str = "helm") -> None:
        self._helm, self.server, self._manager = helm, server, manager
        self.applies = "helm-4" in helm  # unless Helm 3 began the release
        self.revisions: list[Manifest] = []
        self.live: Manifest = {}

    @property
    def pods(self) -> int:
        return int(self.live["spec"]["replicas"])

    def render(self, values: Manifest, is_upgrade: bool = True) -> tuple[Manifest, ...]:
        """Render the chart with the values and the cluster. Raises Refusal."""
        if self.live:
            self.server.put(self.live)
        flags = ("--kube-version", self.server.version, *(("--is-upgrade",) if is_upgrade else ()))
        command = ("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=server", *flags)
        connection = ("--kubeconfig", str(self.server.kubeconfig), "--disable-openapi-validation", "--values", "-")
        ran = run_helm(self._helm, *command, *connection, stdin=yaml.safe_dump(values))
        if ran.returncode:
            raise Refusal(ran.stderr)
        return manifests(ran.stdout)

    def upgrade(self, values: Manifest) -> int:
        """Pods after an upgrade, or an install. Raises Refusal and Conflict."""
        self._apply(workload(self.render(values, is_upgrade=bool(self.live))))
        return self.pods

    def rollback(self, revision: int) -> int:
        """Pods after a rollback to a revision, the first of which is 1. Raises Conflict."""
        self._apply(self.revisions[revision - 1])
        return self.pods

    def scale(self, pods: int, manager: str = "kubectl") -> None:
        """Change the number as `kubectl scale` and autoscalers do: the manager takes the field from all others."""
        if pods == self.pods:
            return
        self.live["spec"]["replicas"] = pods
        owners = self._entries("replicas")
        for entry in owners:
            entry["fieldsV1"]["f:spec"].pop("f:replicas")
        kept = [entry for entry in self.live["metadata"]["managedFields"] if entry["fieldsV1"]["f:spec"]]
        scaler = managed(manager, "Update", ["replicas"]) | {"subresource": "scale"}
        self.live["metadata"]["managedFields"] = [*kept, scaler] if owners else kept

    def _apply(self, manifest: Manifest) -> None:
        wanted = manifest["spec"].get("replicas")
        others = [each for each in self._entries("replicas") if each.get("subresource") == "scale"]
        if self.applies and others and wanted not in (None, self.pods):
            raise Conflict(f"conflict with {others[0]['manager']!r} with subresource 'scale'")
        if self.applies:
            had = any(each["manager"] == self._manager for each in self._entries("replicas"))
            is_taken_away = had and wanted is None and not others
        else:
            is_taken_away = bool(self.revisions) and "replicas" in self.revisions[-1]["spec"] and wanted is None
        pods = 1 if is_taken_away or not self.live else self.pods
        entries = [
            each for each in self.live.get("metadata", {}).get("managedFields", []) if each["manager"] != self._manager
        ]
        self.live = copy.deepcopy(manifest)
        self.live["spec"]["replicas"] = pods if wanted is None else wanted
        metadata = self.live["metadata"]
        metadata["annotations"] = metadata.get("annotations", {}) | {"meta.helm.sh/release-name": RELEASE}
        fields = list(manifest["spec"])
        if not self.applies and not any("f:replicas" in each["fieldsV1"]["f:spec"] for each in entries):
            fields.append("replicas")  # an update manages defaults too
        own = managed(self._manager, "Apply" if self.applies else "Update", fields)
        self.live["metadata"]["managedFields"] = [*entries, own]
        self.revisions.append(manifest)

    def _entries(self, field: str) -> list[Manifest]:
        entries = self.live.get("metadata", {}).get("managedFields", [])
        return [each for each in entries if f"f:{field}" in each["fieldsV1"]["f:spec"]]


def managed(manager: str, operation: str, fields: list[str], below: Manifest | None = None) -> Manifest:
    """An entry of managedFields, with the same fields below each of these fields of the spec."""
    owned: Manifest = {f"f:{field}": dict(below or {}) for field in fields}
    return {"manager": manager, "operation": operation, "fieldsV1": {"f:spec": owned}}
