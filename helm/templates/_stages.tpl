{{/* Pipeline stages in pods of their own: the server's pod leads a group, and the others are `neuronserve stage`. */}}

{{/* Addresses of a group's stages, as its leader knows them: their names are the leader's with a number behind it, below the
headless Service that the group has. */}}
{{- define "neuronserve.stages" -}}
{{- range untilStep 1 (.Values.pipeline.size | int) 1 }}
- $(POD_NAME)-{{ . }}.$(POD_NAME).{{ $.Release.Namespace }}.svc:{{ $.Values.pipeline.port | int }}
{{- end }}
{{- end }}

{{/* A server ends that finds no stages. They come later than it, and download the model first. */}}
{{- define "neuronserve.stagesWait" -}}
- name: stages
  image: {{ include "neuronserve.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command:
    - python
    - -c
    - |
      {{- .Files.Get "files/stages.py" | trim | nindent 6 }}
  args:
    {{- include "neuronserve.stages" . | trim | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
  {{- with .Values.tests.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "neuronserve.stageContainer" -}}
args:
  - stage
  {{- with .Values.model.name }}
  - {{ . | quote }}
  {{- end }}
  - --listen=0.0.0.0:{{ .Values.pipeline.port | int }}
  - --pipeline-key-file=/etc/neuronserve-pipeline/key
ports:
  - name: stage
    containerPort: {{ .Values.pipeline.port | int }}
    protocol: TCP
readinessProbe:
  tcpSocket:
    port: stage
  {{- toYaml .Values.probes.readiness | nindent 2 }}
resources:
  {{- include "neuronserve.resources" . | nindent 2 }}
{{- end }}
