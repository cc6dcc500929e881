{{/* Of a RayService: a Ray cluster whose workers run one replica each, and Ray Serve's application of them. The operator
makes the Service, which leads to the cluster that is in force. */}}
{{- define "neuronserve.raySpec" -}}
{{- $v := .Values }}
{{- $workers := include "neuronserve.rayWorkers" . | int -}}
serveConfigV2: |
  proxy_location: EveryNode
  http_options:
    host: {{ $v.server.host | quote }}
    port: {{ $v.server.port | int }}
  applications:
    - name: neuronserve
      route_prefix: /
      import_path: neuronserve.server.ray.app:build
      args:
        num_replicas: {{ ternary "auto" $workers $v.autoscaling.enabled }}
        {{- include "neuronserve.settings" . | nindent 8 }}
upgradeStrategy:
  type: {{ $v.ray.upgradeType }}
serveService:
  metadata:
    name: "{{ include "neuronserve.fullname" . }}"
    labels:
      {{- include "neuronserve.labels" (list . "server") | nindent 6 }}
    {{- with $v.service.annotations }}
    annotations:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    type: {{ $v.service.type }}
    ports:
      - name: serve
        port: {{ $v.service.port | int }}
        targetPort: serve
        protocol: TCP
rayClusterConfig:
  rayVersion: {{ $v.ray.version | quote }}
  authOptions:
    mode: token
  {{- if $v.autoscaling.enabled }}
  enableInTreeAutoscaling: true
  autoscalerOptions:
    idleTimeoutSeconds: {{ $v.autoscaling.scaleDownStabilizationSeconds | int }}
    securityContext:
      {{- omit $v.securityContext "readOnlyRootFilesystem" | toYaml | nindent 6 }}
  {{- end }}
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      {{- include "neuronserve.pod" (list . "head") | nindent 6 }}
  workerGroupSpecs:
    - groupName: server
      replicas: {{ $workers }}
      minReplicas: {{ ternary $v.autoscaling.minReplicas $workers $v.autoscaling.enabled | int }}
      maxReplicas: {{ ternary $v.autoscaling.maxReplicas $workers $v.autoscaling.enabled | int }}
      rayStartParams: {}
      template:
        {{- include "neuronserve.pod" (list . "worker") | nindent 8 }}
{{- end }}

{{/* Workers at first, or always without autoscaling. */}}
{{- define "neuronserve.rayWorkers" -}}
{{- if .Values.autoscaling.enabled }}{{ .Values.autoscaling.minReplicas | int }}{{ else }}{{ .Values.replicaCount | default 1 | int }}{{ end }}
{{- end }}

{{/* The operator adds the command, the token and the probe of liveness; its own probe of readiness needs wget. */}}
{{- define "neuronserve.headContainer" -}}
{{ include "neuronserve.rayPorts" . }}
resources:
  {{- toYaml .Values.ray.headResources | nindent 2 }}
{{- end }}

{{- define "neuronserve.workerContainer" -}}
{{ include "neuronserve.rayPorts" . }}
readinessProbe:
  httpGet:
    path: /-/healthz
    port: serve
  {{- toYaml .Values.probes.readiness | nindent 2 }}
resources:
  {{- include "neuronserve.resources" . | nindent 2 }}
{{- end }}

{{- define "neuronserve.rayPorts" -}}
ports:
  - name: serve
    containerPort: {{ .Values.server.port | int }}
    protocol: TCP
  - name: metrics
    containerPort: 8080
    protocol: TCP
{{- end }}
