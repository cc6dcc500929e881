{{/* The pod of a component, from `metadata` on. The argument is the list (context, component): `server`, or what stands beside
it. No label of it names the chart's version: that alone rolls no pod. The server's settings are an annotation that it
mounts as a file, not a ConfigMap beside it: they are accepted or refused together with the pod, and `kubectl rollout undo`
takes them back with it. */}}
{{- define "neuronserve.pod" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $v := $root.Values }}
{{- $own := dict }}
{{- if eq $component "server" }}
{{- $_ := set $own "neuronserve/config.yaml" (include "neuronserve.settings" $root) }}
{{- end }}
{{- if and (include "neuronserve.hasKeys" $component) $v.auth.apiKeys (not $v.auth.existingSecret) }}
{{- $_ := set $own "checksum/secret" (join "," $v.auth.apiKeys | sha256sum) }}
{{- end -}}
metadata:
  labels:
    {{- merge (include "neuronserve.selector" . | fromYaml) $v.podLabels $v.commonLabels | toYaml | nindent 4 }}
  {{- with merge $own $v.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: "{{ include "neuronserve.serviceAccountName" $root }}"
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "neuronserve.gracePeriod" $root }}
  {{- with $v.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- $isWaiting := and (eq $component "server") (eq $v.mode "leaderworkerset") }}
  {{- $before := ternary $v.initContainers list (not (empty (include "neuronserve.computes" $component))) }}
  {{- if or $isWaiting $before }}
  initContainers:
    {{- if $isWaiting }}
    {{- include "neuronserve.stagesWait" $root | nindent 4 }}
    {{- end }}
    {{- with $before }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: server
      {{- include "neuronserve.container" . | nindent 6 }}
    {{- if include "neuronserve.computes" $component }}
    {{- with $v.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
  volumes:
    {{- include "neuronserve.volumes" . | nindent 4 }}
  {{- include "neuronserve.scheduling" . | nindent 2 }}
{{- end }}

{{/* Whether a component has models: their files, and what values say of "the server". */}}
{{- define "neuronserve.computes" -}}
{{- if not (has . (list "router" "picker")) }}true{{ end }}
{{- end }}

{{/* Whether a component reads callers' keys. */}}
{{- define "neuronserve.hasKeys" -}}
{{- if has . (list "server" "head" "worker") }}true{{ end }}
{{- end }}

{{/* The argument is the list (context, component); the part of one component is `neuronserve.<component>Container`. */}}
{{- define "neuronserve.container" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $v := $root.Values -}}
image: {{ include "neuronserve.image" $root }}
imagePullPolicy: {{ $v.image.pullPolicy }}
env:
  {{- include "neuronserve.env" . | nindent 2 }}
{{- if include "neuronserve.computes" $component }}
{{- with $v.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{ include (printf "neuronserve.%sContainer" $component) $root }}
{{- $sleep := $v.preStopSleepSeconds | int }}
{{- if eq $component "stage" }}
{{- /* Until the server, which goes with it, has drained. */}}
{{- $sleep = sub (include "neuronserve.gracePeriod" $root | int) 5 }}
{{- end }}
lifecycle:
  preStop:
    {{- if semverCompare ">=1.30-0" $root.Capabilities.KubeVersion.Version }}
    sleep:
      seconds: {{ $sleep }}
    {{- else }}
    exec:
      command: [python, -c, "import time; time.sleep({{ $sleep }})"]
    {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
{{- with $v.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "neuronserve.volumeMounts" . | nindent 2 }}
{{- end }}

{{- define "neuronserve.serverContainer" -}}
{{- $v := .Values -}}
args:
  - serve
  - --config=/etc/neuronserve/config.yaml
  - {{ printf "--host=%s" $v.server.host | quote }}
  - --port={{ $v.server.port | int }}
  - --health-port={{ $v.server.healthPort | int }}
  {{- if eq $v.mode "leaderworkerset" }}
  {{- range (include "neuronserve.stages" . | fromYamlArray) }}
  - --pipeline-stages={{ . }}
  {{- end }}
  {{- end }}
  {{- range $v.extraArgs }}
  - {{ . | quote }}
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
    {{- if include "neuronserve.hasTls" (list $ "server") }}
    scheme: HTTPS
    {{- end }}
    {{- end }}
  {{- toYaml (get $v.probes (trimSuffix "Probe" $probe)) | nindent 2 }}
{{- end }}
resources:
  {{- include "neuronserve.resources" . | nindent 2 }}
{{- end }}

{{/* Every path that is written lies on a volume, because the root file system is read-only. The argument is
the list (context, component). */}}
{{- define "neuronserve.env" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $v := $root.Values -}}
- name: HOME
  value: /tmp
{{- if include "neuronserve.computes" $component }}
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
{{- with ternary (include "neuronserve.authSecret" $root) "" (not (empty (include "neuronserve.hasKeys" $component))) }}
- name: NEURONSERVE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: "{{ include "neuronserve.authSecretKey" $root }}"
{{- end }}
{{- $cpu := ternary "limits.cpu" (ternary "requests.cpu" "" (hasKey (default dict $v.resources.requests) "cpu")) (hasKey (default dict $v.resources.limits) "cpu") }}
{{- if and $cpu (has $component (list "server" "stage")) }}
- name: NEURONSERVE_CPU_THREADS
  valueFrom:
    resourceFieldRef:
      containerName: server
      resource: {{ $cpu }}
      divisor: "1"
{{- end }}
{{- if and (eq $component "server") (eq $v.mode "leaderworkerset") }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}
{{- if has $component (list "head" "worker") }}
{{- /* A replica listens at a free port of its node; the image has others for a server. */}}
- name: NEURONSERVE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: NEURONSERVE_PORT
  value: "0"
{{- end }}
{{- with $v.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Extended resources are whole numbers, the same in requests and limits. */}}
{{- define "neuronserve.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if eq .Values.accelerator.type "neuron" }}
{{- $cores := include "neuronserve.cores" . | int }}
{{- $device := get (.Files.Get "files/devices.json" | fromJson) .Values.device }}
{{- $per := ternary 1 $device.coresPerDevice (eq .Values.accelerator.resourceName "aws.amazon.com/neuroncore") }}
{{- $count := .Values.accelerator.count | default (divf $cores $per | ceil) | int }}
{{- range $part := list "requests" "limits" }}
{{- $_ := set $resources $part (merge (dict $.Values.accelerator.resourceName $count) (default dict (get $resources $part))) }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* The argument is the list (context, component). */}}
{{- define "neuronserve.scheduling" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $v := $root.Values }}
{{- $computes := include "neuronserve.computes" $component }}
{{- $isNeuron := and (not (empty $computes)) (ne $component "head") (eq $v.accelerator.type "neuron") }}
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
{{- with ternary $v.affinity dict (not (empty $computes)) }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with ternary $v.topologySpreadConstraints (include "neuronserve.proxy" . | fromYaml).topologySpreadConstraints (not (empty $computes)) }}
topologySpreadConstraints:
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "neuronserve.selector" $ | fromYaml)) }}
  {{- range . }}
  - {{ toYaml (merge (deepCopy .) $own) | nindent 4 | trim }}
  {{- end }}
{{- end }}
{{- with $v.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if $computes }}
{{- with $v.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- with $v.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
