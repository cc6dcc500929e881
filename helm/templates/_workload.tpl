{{/* The object whose pods are the servers. */}}
{{- define "neuronserve.workload" -}}
{{- $v := .Values -}}
{{- $replicas := include "neuronserve.replicas" . -}}
{{ include "neuronserve.workloadKind" . }}
metadata:
  name: "{{ include "neuronserve.fullname" . }}"
  labels:
    {{- include "neuronserve.labels" (list . "server") | nindent 4 }}
  {{- if eq $v.mode "rayservice" }}
spec:
  {{- include "neuronserve.raySpec" . | nindent 2 }}
  {{- else }}
  {{- if not $replicas }}
  annotations:
    neuronserve/replicas: unset
  {{- end }}
spec:
  {{- if $replicas }}
  replicas: {{ $replicas }}
  {{- end }}
  {{- include (ternary "neuronserve.groupsSpec" "neuronserve.podsSpec" (eq $v.mode "leaderworkerset")) . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Of a Deployment or StatefulSet. */}}
{{- define "neuronserve.podsSpec" -}}
{{- $v := .Values -}}
{{- $isSet := eq $v.kind "StatefulSet" -}}
revisionHistoryLimit: {{ $v.revisionHistoryLimit | int }}
selector:
  matchLabels:
    {{- include "neuronserve.selectorLabels" . | nindent 4 }}
{{- if $isSet }}
serviceName: "{{ include "neuronserve.fullname" . }}-headless"
podManagementPolicy: Parallel
updateStrategy:
  {{- include "neuronserve.strategy" . | nindent 2 }}
{{- else }}
progressDeadlineSeconds: {{ include "neuronserve.progressDeadline" . }}
strategy:
  {{- include "neuronserve.strategy" . | nindent 2 }}
{{- end }}
template:
  {{- include "neuronserve.pod" (list . "server") | nindent 2 }}
{{- if and $isSet $v.cache.persistence.enabled }}
persistentVolumeClaimRetentionPolicy:
  whenDeleted: {{ ternary "Retain" "Delete" $v.cache.persistence.retain }}
  whenScaled: Retain
volumeClaimTemplates:
  - metadata:
      name: cache
      labels:
        {{- include "neuronserve.selectorLabels" . | nindent 8 }}
    spec:
      {{- include "neuronserve.claim" (list . $v.cache.persistence.storageClass) | nindent 6 }}
{{- end }}
{{- end }}

{{/* Of a LeaderWorkerSet: each group is a server and its further stages. A stage that restarts is asked again by the server,
whose streams go on, so the group stays. */}}
{{- define "neuronserve.groupsSpec" -}}
startupPolicy: LeaderCreated
networkConfig:
  subdomainPolicy: UniquePerReplica
rolloutStrategy:
  type: RollingUpdate
  rollingUpdateConfiguration:
    {{- merge (include "neuronserve.strategy" . | fromYaml).rollingUpdate (dict "partition" 0) | toYaml | nindent 4 }}
leaderWorkerTemplate:
  size: {{ .Values.pipeline.size | int }}
  restartPolicy: None
  leaderTemplate:
    {{- include "neuronserve.pod" (list . "server") | nindent 4 }}
  workerTemplate:
    {{- include "neuronserve.pod" (list . "stage") | nindent 4 }}
{{- end }}
