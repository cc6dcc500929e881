{{/* Deployments in front of the servers, which compute nothing: routers and endpoint pickers. */}}

{{/* Values of a proxy. The argument is the list (context, component). */}}
{{- define "neuronserve.proxy" -}}
{{- $v := (index . 0).Values }}
{{- get (dict "router" $v.router "picker" $v.inferencePool.endpointPicker) (index . 1) | default dict | toYaml }}
{{- end }}

{{/* The argument is the list (context, component). */}}
{{- define "neuronserve.proxyDeployment" -}}
{{- $root := index . 0 -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: "{{ include "neuronserve.componentName" . }}"
  labels:
    {{- include "neuronserve.labels" . | nindent 4 }}
spec:
  replicas: {{ (include "neuronserve.proxy" . | fromYaml).replicaCount | int }}
  revisionHistoryLimit: {{ $root.Values.revisionHistoryLimit | int }}
  selector:
    matchLabels:
      {{- include "neuronserve.selector" . | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  template:
    {{- include "neuronserve.pod" . | nindent 4 }}
{{- end }}

{{/* Arguments of each proxy: it finds the servers that are ready by their headless Service. */}}
{{- define "neuronserve.proxyArguments" -}}
- dns:{{ include "neuronserve.fullname" . }}-headless.{{ .Release.Namespace }}.svc:{{ .Values.server.port | int }}
- {{ printf "--host=%s" .Values.server.host | quote }}
- --shutdown-timeout={{ .Values.server.shutdownTimeoutSeconds }}
{{- end }}

{{- define "neuronserve.routerContainer" -}}
{{- $v := .Values -}}
args:
  - route
  {{- include "neuronserve.proxyArguments" . | nindent 2 }}
  - --port={{ $v.router.port | int }}
  {{- if include "neuronserve.hasTls" (list . "router") }}
  - --ssl-certfile=/etc/neuronserve-tls/tls.crt
  - --ssl-keyfile=/etc/neuronserve-tls/tls.key
  {{- end }}
  {{- range $v.server.allowedOrigins }}
  - {{ printf "--allowed-origins=%s" . | quote }}
  {{- end }}
  {{- range $v.router.extraArgs }}
  - {{ . | quote }}
  {{- end }}
ports:
  - name: http
    containerPort: {{ $v.router.port | int }}
    protocol: TCP
{{- range $probe := list "liveness" "readiness" }}
{{ $probe }}Probe:
  httpGet:
    path: /health/{{ ternary "live" "ready" (eq $probe "liveness") }}
    port: http
    {{- if include "neuronserve.hasTls" (list $ "router") }}
    scheme: HTTPS
    {{- end }}
  {{- toYaml (get $v.probes $probe) | nindent 2 }}
{{- end }}
resources:
  {{- toYaml $v.router.resources | nindent 2 }}
{{- end }}

{{/* Gateways expect TLS of a picker, with any certificate: it signs its own. */}}
{{- define "neuronserve.pickerContainer" -}}
{{- $v := .Values -}}
args:
  - pick
  {{- include "neuronserve.proxyArguments" . | nindent 2 }}
  - --port={{ $v.inferencePool.endpointPicker.port | int }}
  - --grpc-health-port=9003
  - --metrics-port=9090
  {{- range $v.inferencePool.endpointPicker.extraArgs }}
  - {{ . | quote }}
  {{- end }}
ports:
  - name: grpc
    containerPort: {{ $v.inferencePool.endpointPicker.port | int }}
    protocol: TCP
  - name: health
    containerPort: 9003
    protocol: TCP
  - name: metrics
    containerPort: 9090
    protocol: TCP
{{- range $probe := list "liveness" "readiness" }}
{{ $probe }}Probe:
  grpc:
    port: 9003
    service: {{ $probe }}
  {{- toYaml (get $v.probes $probe) | nindent 2 }}
{{- end }}
resources:
  {{- toYaml $v.inferencePool.endpointPicker.resources | nindent 2 }}
{{- end }}
