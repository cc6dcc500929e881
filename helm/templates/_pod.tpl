{{/* The pod of either kind of workload, from `metadata` on. No label of it names the chart's version: that alone rolls no pod.
Its settings are an annotation that it mounts as a file, not a ConfigMap beside it: they are accepted or refused together
with the pod, and `kubectl rollout undo` takes them back with it. */}}
{{- define "neuronserve.pod" -}}
{{- $v := .Values -}}
metadata:
  labels:
    {{- merge (include "neuronserve.selectorLabels" . | fromYaml) $v.podLabels $v.commonLabels | toYaml | nindent 4 }}
  annotations:
    {{- $own := dict "neuronserve/config.yaml" (include "neuronserve.settings" .) }}
    {{- if and $v.auth.apiKeys (not $v.auth.existingSecret) }}
    {{- $_ := set $own "checksum/secret" (join "," $v.auth.apiKeys | sha256sum) }}
    {{- end }}
    {{- merge $own $v.podAnnotations | toYaml | nindent 4 }}
spec:
  serviceAccountName: "{{ include "neuronserve.serviceAccountName" . }}"
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "neuronserve.gracePeriod" . }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: server
      {{- include "neuronserve.container" . | nindent 6 }}
    {{- with $v.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "neuronserve.volumes" . | nindent 4 }}
  {{- include "neuronserve.scheduling" . | nindent 2 }}
{{- end }}

{{- define "neuronserve.container" -}}
{{- $v := .Values -}}
image: {{ include "neuronserve.image" . }}
imagePullPolicy: {{ $v.image.pullPolicy }}
args:
  - serve
  - --config=/etc/neuronserve/config.yaml
  - {{ printf "--host=%s" $v.server.host | quote }}
  - --port={{ $v.server.port | int }}
  - --health-port={{ $v.server.healthPort | int }}
  {{- range $v.extraArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "neuronserve.env" . | nindent 2 }}
{{- with $v.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: http
    containerPort: {{ $v.server.port | int }}
    protocol: TCP
  - name: health
    containerPort: {{ $v.server.healthPort | int }}
    protocol: TCP
{{- range $probe, $path := dict "startupProbe" "ready" "livenessProbe" "live" "readinessProbe" "ready" }}
{{ $probe }}:
  httpGet:
    path: /health/{{ $path }}
    {{- if eq $path "live" }}
    port: health
    {{- else }}
    port: http
    {{- if $v.tls.existingSecret }}
    scheme: HTTPS
    {{- end }}
    {{- end }}
  {{- toYaml (get $v.probes (trimSuffix "Probe" $probe)) | nindent 2 }}
{{- end }}
lifecycle:
  preStop:
    {{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}
    sleep:
      seconds: {{ $v.preStopSleepSeconds | int }}
    {{- else }}
    exec:
      command: [python, -c, "import time; time.sleep({{ $v.preStopSleepSeconds | int }})"]
    {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
resources:
  {{- include "neuronserve.resources" . | nindent 2 }}
{{- with $v.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "neuronserve.volumeMounts" . | nindent 2 }}
{{- end }}

{{- define "neuronserve.volumeMounts" -}}
- name: config
  mountPath: /etc/neuronserve
  readOnly: true
- name: cache
  mountPath: /cache
- name: tmp
  mountPath: /tmp
{{- if .Values.model.existingClaim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- if .Values.auth.keysFileSecret }}
- name: keys
  mountPath: /etc/neuronserve-keys
  readOnly: true
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: tls
  mountPath: /etc/neuronserve-tls
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Every path that is written lies on a volume, because the root file system is read-only. */}}
{{- define "neuronserve.env" -}}
{{- $v := .Values -}}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /cache
- name: HF_HOME
  value: /cache/huggingface
- name: NEURONSERVE_KERNEL_CACHE_DIR
  value: /cache/kernels
{{- if $v.huggingface.offline }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- with $v.huggingface.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: {{ $v.huggingface.existingSecretKey | quote }}
{{- end }}
{{- with include "neuronserve.authSecret" . }}
- name: NEURONSERVE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: "{{ include "neuronserve.authSecretKey" $ }}"
{{- end }}
{{- $cpu := ternary "limits.cpu" (ternary "requests.cpu" "" (hasKey (default dict $v.resources.requests) "cpu")) (hasKey (default dict $v.resources.limits) "cpu") }}
{{- if $cpu }}
- name: NEURONSERVE_CPU_THREADS
  valueFrom:
    resourceFieldRef:
      containerName: server
      resource: {{ $cpu }}
      divisor: "1"
{{- end }}
{{- with $v.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Extended resources are whole numbers, the same in requests and limits. */}}
{{- define "neuronserve.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if eq .Values.accelerator.type "neuron" }}
{{- $cores := mul .Values.tensorParallelSize .Values.dataParallelSize }}
{{- $device := get (.Files.Get "files/devices.json" | fromJson) .Values.device }}
{{- $per := ternary 1 $device.coresPerDevice (eq .Values.accelerator.resourceName "aws.amazon.com/neuroncore") }}
{{- $count := .Values.accelerator.count | default (divf $cores $per | ceil) | int }}
{{- range $part := list "requests" "limits" }}
{{- $_ := set $resources $part (merge (dict $.Values.accelerator.resourceName $count) (default dict (get $resources $part))) }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{- define "neuronserve.volumes" -}}
{{- $v := .Values -}}
- name: config
  downwardAPI:
    items:
      - path: config.yaml
        fieldRef:
          fieldPath: metadata.annotations['neuronserve/config.yaml']
- name: tmp
  emptyDir: {}
{{- if not $v.cache.persistence.enabled }}
- name: cache
  emptyDir:
    {{- if $v.cache.sizeLimit }}
    sizeLimit: {{ $v.cache.sizeLimit | quote }}
    {{- else }} {}
    {{- end }}
{{- else if eq $v.kind "Deployment" }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-cache" (include "neuronserve.fullname" .)) $v.cache.persistence.existingClaim | quote }}
{{- end }}
{{- with $v.model.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ . | quote }}
    readOnly: true
{{- end }}
{{- with $v.auth.keysFileSecret }}
- name: keys
  secret:
    secretName: {{ . | quote }}
    items:
      - key: keys.yaml
        path: keys.yaml
{{- end }}
{{- with $v.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ . | quote }}
    items:
      - key: tls.crt
        path: tls.crt
      - key: tls.key
        path: tls.key
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "neuronserve.scheduling" -}}
{{- $v := .Values }}
{{- $isNeuron := eq $v.accelerator.type "neuron" }}
{{- $selector := ternary (dict "node.kubernetes.io/instance-type" $v.device) dict $isNeuron }}
{{- with merge (deepCopy $v.nodeSelector) $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $taint := list (dict "key" "aws.amazon.com/neuron" "operator" "Exists" "effect" "NoSchedule") }}
{{- with concat (ternary $taint list $isNeuron) $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "neuronserve.selectorLabels" $ | fromYaml)) }}
  {{- range . }}
  - {{ toYaml (merge (deepCopy .) $own) | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $v.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with $v.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- end }}
