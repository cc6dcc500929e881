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
        distributed: ray
        num_replicas: {{ $workers }}
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
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      {{- include "neuronserve.pod" (list . "head") | nindent 6 }}
  workerGroupSpecs:
    - groupName: server
      replicas: {{ $workers }}
      minReplicas: {{ $workers }}
      maxReplicas: {{ $workers }}
      rayStartParams: {}
      template:
        {{- include "neuronserve.pod" (list . "worker") | nindent 8 }}
{{- end }}

{{- define "neuronserve.rayWorkers" -}}
{{ .Values.replicaCount | default 1 | int }}
{{- end }}

{{/* The operator adds the command, the token and further probes. It finds the dashboard by the name of its port, and deploys
the application when the head is ready. */}}
{{- define "neuronserve.headContainer" -}}
ports:
  - name: gcs-server
    containerPort: 6379
    protocol: TCP
  - name: dashboard
    containerPort: 8265
    protocol: TCP
  {{- include "neuronserve.rayPorts" . | nindent 2 }}
startupProbe:
  exec:
    command:
      - python
      - -c
      - |
        {{- .Files.Get "files/workers.py" | trim | nindent 8 }}
      - {{ include "neuronserve.rayWorkers" . | quote }}
  {{- toYaml .Values.probes.startup | nindent 2 }}
resources:
  {{- toYaml .Values.ray.headResources | nindent 2 }}
{{- end }}

{{/* The operator's own probe of readiness needs wget. */}}
{{- define "neuronserve.workerContainer" -}}
ports:
  {{- include "neuronserve.rayPorts" . | nindent 2 }}
readinessProbe:
  httpGet:
    path: /-/healthz
    port: serve
  {{- toYaml .Values.probes.readiness | nindent 2 }}
resources:
  {{- include "neuronserve.resources" . | nindent 2 }}
{{- end }}

{{- define "neuronserve.rayPorts" -}}
- name: serve
  containerPort: {{ .Values.server.port | int }}
  protocol: TCP
- name: metrics
  containerPort: 8080
  protocol: TCP
{{- end }}
