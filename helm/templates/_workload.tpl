{{/* The Deployment or StatefulSet. */}}
{{- define "neuronserve.workload" -}}
{{- $v := .Values -}}
{{- $isSet := eq $v.kind "StatefulSet" -}}
{{- $replicas := include "neuronserve.replicas" . -}}
apiVersion: apps/v1
kind: {{ $v.kind }}
metadata:
  name: "{{ include "neuronserve.fullname" . }}"
  labels:
    {{- include "neuronserve.labels" (list . "server") | nindent 4 }}
  {{- if not $replicas }}
  annotations:
    neuronserve/replicas: unset
  {{- end }}
spec:
  {{- if $replicas }}
  replicas: {{ $replicas }}
  {{- end }}
  revisionHistoryLimit: {{ $v.revisionHistoryLimit | int }}
  selector:
    matchLabels:
      {{- include "neuronserve.selectorLabels" . | nindent 6 }}
  {{- if $isSet }}
  serviceName: "{{ include "neuronserve.fullname" . }}-headless"
  podManagementPolicy: Parallel
  updateStrategy:
    {{- include "neuronserve.strategy" . | nindent 4 }}
  {{- else }}
  progressDeadlineSeconds: {{ include "neuronserve.progressDeadline" . }}
  strategy:
    {{- include "neuronserve.strategy" . | nindent 4 }}
  {{- end }}
  template:
    {{- include "neuronserve.pod" . | nindent 4 }}
  {{- if and $isSet $v.cache.persistence.enabled }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ ternary "Retain" "Delete" $v.cache.persistence.retain }}
    whenScaled: Retain
  volumeClaimTemplates:
    - metadata:
        name: cache
        labels:
          {{- include "neuronserve.selectorLabels" . | nindent 10 }}
      spec:
        {{- include "neuronserve.claim" (list . $v.cache.persistence.storageClass) | nindent 8 }}
  {{- end }}
{{- end }}
