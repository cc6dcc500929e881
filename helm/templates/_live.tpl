{{/* What the cluster has already. `lookup` finds nothing where no cluster is asked: `helm template`, `helm lint`, and
continuous delivery that renders by itself. */}}
{{- define "neuronserve.live" -}}
{{- $of := include "neuronserve.workloadKind" . | fromYaml }}
{{- lookup $of.apiVersion $of.kind .Release.Namespace (include "neuronserve.fullname" .) | toYaml }}
{{- end }}

{{/* Who besides Helm manages a field of a live object's spec, such as kubectl after `kubectl scale`. The argument is the
list (object, field). An autoscaler and `kubectl scale` write through the subresource `scale`. Helm goes by the name of
the program that it is in: helm, helm-controller, terraform-provider-helm. */}}
{{- define "neuronserve.managers" -}}
{{- $names := list }}
{{- range dig "metadata" "managedFields" list (index . 0) }}
{{- if and (hasKey (dig "fieldsV1" "f:spec" dict .) (printf "f:%s" (index $ 1))) (or .subresource (not (contains "helm" .manager))) }}
{{- $names = append $names .manager }}
{{- end }}
{{- end }}
{{- $names | uniq | join ", " }}
{{- end }}

{{/* Whether Helm applies the live object on the server, where a field has managers and another's value is a conflict: Helm 4,
unless the release is one that Helm 3 began. The argument is the list (context, object). */}}
{{- define "neuronserve.isApplied" -}}
{{- if semverCompare ">=4.0.0-0" (index . 0).Capabilities.HelmVersion.Version }}
{{- range dig "metadata" "managedFields" list (index . 1) }}
{{- if and (eq .operation "Apply") (contains "helm" .manager) }}true{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The number of pods that the values ask for, or nothing when it is left to others. */}}
{{- define "neuronserve.wantedReplicas" -}}
{{- $v := .Values }}
{{- if and (not (kindIs "invalid" $v.replicaCount)) (not $v.autoscaling.enabled) }}{{ $v.replicaCount | int }}{{ end }}
{{- end }}

{{/* Whether the manifests of the live workload have left spec.replicas out. They do so from then on: a rollback from a
manifest that has the field to one without it takes it away, and Kubernetes begins with one pod again. */}}
{{- define "neuronserve.isLeft" -}}
{{- if eq (dig "metadata" "annotations" "neuronserve/replicas" "" .) "unset" }}true{{ end }}
{{- end }}

{{/* spec.replicas, or nothing to leave the field out.

Once it has been in a manifest, a manifest without it takes it away too. So a number that is left to others is rendered as
it is in the cluster, which changes nothing, until the server knows another manager of the field, who keeps it.
A workload that is gone although the release is there was deleted to be made anew: its pods are still there, and
replicaCount says how many. */}}
{{- define "neuronserve.replicas" -}}
{{- $live := include "neuronserve.live" . | fromYaml }}
{{- $wanted := include "neuronserve.wantedReplicas" . }}
{{- if include "neuronserve.isLeft" $live }}
{{- else if $wanted }}
{{- $wanted }}
{{- else if $live }}
{{- if not (and (include "neuronserve.isApplied" (list . $live)) (include "neuronserve.managers" (list $live "replicas"))) }}
{{- max (ternary 1 0 .Values.autoscaling.enabled) ($live.spec.replicas | int) }}
{{- end }}
{{- else if and .Release.IsUpgrade .Values.replicaCount }}
{{- .Values.replicaCount | int }}
{{- end }}
{{- end }}

{{/* Changes that an API server refuses after other objects of the release have changed: said before anything does. */}}
{{- define "neuronserve.checkLive" -}}
{{- $live := include "neuronserve.live" . | fromYaml }}
{{- if $live }}
{{- $object := printf "%s/%s" ($live.kind | lower) $live.metadata.name }}
{{- $root := dict "root" . "live" $live "object" $object "kubectl" (printf "kubectl -n %s" .Release.Namespace) }}
{{- $owner := dig "metadata" "annotations" "meta.helm.sh/release-name" .Release.Name $live }}
{{- if ne $owner .Release.Name }}
{{- fail (printf "fullnameOverride: %s is of the release %s; choose a name of which there is none" $object $owner) }}
{{- end }}
{{- if ne .Values.mode "rayservice" }}
{{- include "neuronserve.checkReplicas" $root }}
{{- end }}
{{- if has .Values.mode (list "deployment" "router") }}
{{- include "neuronserve.checkLiveStrategy" $root }}
{{- include "neuronserve.checkSelector" $root }}
{{- end }}
{{- if eq .Values.kind "StatefulSet" }}
{{- include "neuronserve.checkStatefulSet" $root }}
{{- end }}
{{- end }}
{{- include "neuronserve.checkClaim" . }}
{{- include "neuronserve.checkScaler" . }}
{{- include "neuronserve.checkConflicts" . }}
{{- end }}

{{- define "neuronserve.checkReplicas" -}}
{{- $wanted := include "neuronserve.wantedReplicas" .root }}
{{- $there := .live.spec.replicas | int }}
{{- $managers := include "neuronserve.managers" (list .live "replicas") }}
{{- $isLeft := include "neuronserve.isLeft" .live }}
{{- if and $wanted $isLeft (ne ($wanted | int) $there) }}
{{- fail (printf "replicaCount is %s: %s has %d, and its manifests leave the number to the cluster, so that no rollback resets it. Upgrade with replicaCount %d or null; for %s, then run %s scale %s --replicas=%s" $wanted .object $there $there $wanted .kubectl .object $wanted) }}
{{- end }}
{{- $a := .root.Values.autoscaling }}
{{- if and $isLeft (eq $there 0) $a.enabled (eq $a.type "hpa") }}
{{- fail (printf "autoscaling.enabled is true: %s has no pods, and a HorizontalPodAutoscaler leaves it so. First run %s scale %s --replicas=%d" .object .kubectl .object ($a.minReplicas | int)) }}
{{- end }}
{{- if and $wanted $managers (ne ($wanted | int) $there) }}
{{- if or (include "neuronserve.isApplied" (list .root .live)) (lt ($wanted | int) $there) }}
{{- fail (printf "replicaCount is %s: %s has set the replicas of %s to %d. Keep them with replicaCount %d or null; for %s, first run %s scale %s --replicas=%s" $wanted $managers .object $there $there $wanted .kubectl .object $wanted) }}
{{- end }}
{{- end }}
{{- end }}

{{/* On the server a field is only taken away where Helm alone manages it, and Recreate and OnDelete may not stand beside
`rollingUpdate`, which the API server fills in. Helm 3 replaces the strategy of a Deployment as a whole. */}}
{{- define "neuronserve.checkLiveStrategy" -}}
{{- $isSet := eq .root.Values.kind "StatefulSet" }}
{{- $isApplied := include "neuronserve.isApplied" (list .root .live) }}
{{- $field := ternary "updateStrategy" "strategy" $isSet }}
{{- $wanted := include "neuronserve.strategy" .root | fromYaml }}
{{- $there := get .live.spec $field }}
{{- $type := default "RollingUpdate" $wanted.type }}
{{- $isLeftOver := and (ne $type "RollingUpdate") (hasKey $there "rollingUpdate") (or $isSet $isApplied) }}
{{- if $isLeftOver }}
{{- $set := dict "type" $type "rollingUpdate" $wanted.rollingUpdate }}
{{- $patch := dict "spec" (dict $field $set) | toJson }}
{{- fail (printf "strategy.type is %s: an API server does not let Helm change the strategy of %s from %s, which it or others have filled in. First run %s patch %s --type=merge -p '%s'" $type .object $there.type .kubectl .object $patch) }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkSelector" -}}
{{- $wanted := include "neuronserve.selectorLabels" .root | fromYaml }}
{{- if ne ($wanted | toJson) (.live.spec.selector.matchLabels | toJson) }}
{{- fail (printf "fullnameOverride: the selector of %s is %s, and selectors never change; the chart's is %s. Install under another name beside it and move the clients, or first run %s delete %s, which ends its pods" .object (.live.spec.selector.matchLabels | toJson) ($wanted | toJson) .kubectl .object) }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkStatefulSet" -}}
{{- $p := .root.Values.cache.persistence }}
{{- $made := dict }}
{{- range default list .live.spec.volumeClaimTemplates }}
{{- $made = .spec }}
{{- end }}
{{- $remedy := printf "first run %s delete %s --cascade=orphan, which leaves the pods to serve, and upgrade with replicaCount %d" .kubectl .object (.live.spec.replicas | int) }}
{{- if ne $p.enabled (not (empty $made)) }}
{{- fail (printf "cache.persistence.enabled is %v: %s was made %s volumes, and an API server does not change that: %s" $p.enabled .object (ternary "without" "with" $p.enabled) $remedy) }}
{{- end }}
{{- if $p.enabled }}
{{- include "neuronserve.checkSameClaim" (list .root $made (printf "the volumes of %s" .object) $remedy) }}
{{- end }}
{{- $limit := .root.Values.revisionHistoryLimit | int }}
{{- if and (semverCompare "<1.33-0" .root.Capabilities.KubeVersion.Version) (ne $limit (default 10 .live.spec.revisionHistoryLimit | int)) }}
{{- fail (printf "revisionHistoryLimit is %d: before Kubernetes 1.33 that of a StatefulSet stays what it is, %v: %s" $limit .live.spec.revisionHistoryLimit $remedy) }}
{{- end }}
{{- end }}

{{/* The argument is the list (context, spec of the claim that is there, what it is called, remedy). A size is compared for
a StatefulSet, whose template stays as it is; a claim may grow. */}}
{{- define "neuronserve.checkSameClaim" -}}
{{- $p := (index . 0).Values.cache.persistence }}
{{- $made := index . 1 }}
{{- $what := index . 2 }}
{{- $remedy := index . 3 }}
{{- if ne ($p.accessModes | sortAlpha | toJson) ($made.accessModes | sortAlpha | toJson) }}
{{- fail (printf "cache.persistence.accessModes is %s: %s have %s, which never changes: %s" ($p.accessModes | join ",") $what ($made.accessModes | join ",") $remedy) }}
{{- end }}
{{- $isSet := eq (index . 0).Values.kind "StatefulSet" }}
{{- $class := default "" $made.storageClassName }}
{{- if and (ne $p.storageClass $class) (or $isSet $p.storageClass) }}
{{- fail (printf "cache.persistence.storageClass is %q: %s have %q, which never changes: %s" $p.storageClass $what $class $remedy) }}
{{- end }}
{{- $wanted := include "neuronserve.quantity" $p.size | float64 }}
{{- $there := include "neuronserve.quantity" $made.resources.requests.storage | float64 }}
{{- if or (lt $wanted $there) (and $isSet (ne $wanted $there)) }}
{{- fail (printf "cache.persistence.size is %s: %s have %s, which %s: %s" $p.size $what $made.resources.requests.storage (ternary "never changes" "never shrinks" $isSet) $remedy) }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkClaim" -}}
{{- if include "neuronserve.hasNewClaim" . }}
{{- $name := printf "%s-cache" (include "neuronserve.fullname" .) }}
{{- with lookup "v1" "PersistentVolumeClaim" .Release.Namespace $name }}
{{- include "neuronserve.checkGrowth" (list $ .) }}
{{- include "neuronserve.checkSameClaim" (list $ .spec (printf "the volumes of persistentvolumeclaim/%s" $name) "make another claim and name it in cache.persistence.existingClaim") }}
{{- end }}
{{- end }}
{{- end }}

{{/* The argument is the list (context, claim that is there). Only a bound claim grows, and only if its class lets it. */}}
{{- define "neuronserve.checkGrowth" -}}
{{- $size := (index . 0).Values.cache.persistence.size }}
{{- $claim := index . 1 }}
{{- $there := $claim.spec.resources.requests.storage }}
{{- if gt (include "neuronserve.quantity" $size | float64) (include "neuronserve.quantity" $there | float64) }}
{{- $said := printf "cache.persistence.size is %s: persistentvolumeclaim/%s has %s, and" $size $claim.metadata.name $there }}
{{- if ne (dig "status" "phase" "Pending" $claim) "Bound" }}
{{- fail (printf "%s only a bound claim grows: first let a pod mount it, or run kubectl -n %s delete persistentvolumeclaim/%s" $said $claim.metadata.namespace $claim.metadata.name) }}
{{- end }}
{{- $class := default "" $claim.spec.storageClassName }}
{{- $allows := and $class (lookup "storage.k8s.io/v1" "StorageClass" "" $class | default dict).allowVolumeExpansion }}
{{- if not $allows }}
{{- fail (printf "%s its StorageClass %q does not allow it to grow: make another claim and name it in cache.persistence.existingClaim" $said $class) }}
{{- end }}
{{- end }}
{{- end }}

{{/* KEDA refuses a workload that an autoscaler has already, and Helm deletes the old one only after all else. */}}
{{- define "neuronserve.checkScaler" -}}
{{- $name := include "neuronserve.fullname" . }}
{{- if and .Values.autoscaling.enabled (eq .Values.autoscaling.type "keda") }}
{{- if lookup "autoscaling/v2" "HorizontalPodAutoscaler" .Release.Namespace $name }}
{{- fail (printf "autoscaling.type is keda: horizontalpodautoscaler/%s has the pods still. First upgrade with autoscaling.enabled false and replicaCount null, which keeps them" $name) }}
{{- end }}
{{- end }}
{{- end }}
