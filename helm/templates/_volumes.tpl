{{/* The argument is the list (context, component). */}}
{{- define "neuronserve.volumeMounts" -}}
{{- $v := (index . 0).Values }}
{{- $component := index . 1 }}
{{- $isServer := eq $component "server" }}
{{- $computes := include "neuronserve.computes" $component -}}
- name: tmp
  mountPath: /tmp
{{- if $isServer }}
- name: config
  mountPath: /etc/neuronserve
  readOnly: true
{{- end }}
{{- if $computes }}
- name: cache
  mountPath: /cache
{{- end }}
{{- if and $computes $v.model.existingClaim }}
- name: models
  mountPath: /models
  readOnly: true
{{- end }}
{{- range (include "neuronserve.secretVolumes" . | fromYamlArray) }}
- name: {{ .name }}
  mountPath: /etc/neuronserve-{{ .name }}
  readOnly: true
{{- end }}
{{- if $computes }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The argument is the list (context, component). */}}
{{- define "neuronserve.volumes" -}}
{{- $root := index . 0 }}
{{- $component := index . 1 }}
{{- $v := $root.Values }}
{{- $isServer := eq $component "server" }}
{{- $computes := include "neuronserve.computes" $component -}}
- name: tmp
  emptyDir: {}
{{- if $isServer }}
- name: config
  downwardAPI:
    items:
      - path: config.yaml
        fieldRef:
          fieldPath: metadata.annotations['neuronserve/config.yaml']
{{- end }}
{{- if not $computes }}
{{- else if not $v.cache.persistence.enabled }}
- name: cache
  emptyDir:
    {{- if $v.cache.sizeLimit }}
    sizeLimit: {{ $v.cache.sizeLimit | quote }}
    {{- else }} {}
    {{- end }}
{{- else if eq $v.kind "Deployment" }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-cache" (include "neuronserve.fullname" $root)) $v.cache.persistence.existingClaim | quote }}
{{- end }}
{{- if and $computes $v.model.existingClaim }}
- name: models
  persistentVolumeClaim:
    claimName: {{ $v.model.existingClaim | quote }}
    readOnly: true
{{- end }}
{{- range (include "neuronserve.secretVolumes" . | fromYamlArray) }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret | quote }}
    items:
      {{- range $path, $key := .files }}
      - key: {{ $key | quote }}
        path: {{ $path }}
      {{- end }}
{{- end }}
{{- if $computes }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Secrets that a component mounts as files, below /etc/neuronserve-<name>. The argument is the list (context, component). */}}
{{- define "neuronserve.secretVolumes" -}}
{{- $v := (index . 0).Values }}
{{- $volumes := list }}
{{- if and $v.auth.keysFileSecret (include "neuronserve.hasKeys" (index . 1)) }}
{{- $volumes = append $volumes (dict "name" "keys" "secret" $v.auth.keysFileSecret "files" (dict "keys.yaml" "keys.yaml")) }}
{{- end }}
{{- if include "neuronserve.hasTls" . }}
{{- $volumes = append $volumes (dict "name" "tls" "secret" $v.tls.existingSecret "files" (dict "tls.crt" "tls.crt" "tls.key" "tls.key")) }}
{{- end }}
{{- if and (eq $v.mode "leaderworkerset") (has (index . 1) (list "server" "stage")) }}
{{- $volumes = append $volumes (dict "name" "pipeline" "secret" $v.pipeline.existingSecret "files" (dict "key" $v.pipeline.existingSecretKey)) }}
{{- end }}
{{- toYaml $volumes }}
{{- end }}
