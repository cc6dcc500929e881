{{/* Names are those that Services may have, a letter first. A label of a StatefulSet's pods is its name with a hash of ten
characters, in 63 at most: without a word no pod is made of a name above 52. A RayService has 47 at most, and the pods of a
LeaderWorkerSet two numbers more. */}}
{{- define "neuronserve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "neuronserve.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- $most := ternary 52 45 (has .Values.mode (list "deployment" "router")) }}
{{- regexReplaceAll "^([0-9])" (default $full .Values.fullnameOverride) "n${1}" | replace "." "-" | trunc $most | trimSuffix "-" }}
{{- end }}

{{- define "neuronserve.serviceAccountName" -}}
{{- default (ternary (include "neuronserve.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{/* Selectors cannot be changed, so nothing that a user or a new version of the chart changes is among them. The argument
is the list (context, component). */}}
{{- define "neuronserve.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Selector of the server's pods. */}}
{{- define "neuronserve.selectorLabels" -}}
{{ include "neuronserve.selector" (list . "server") }}
{{- end }}

{{/* Whose pods the Service leads to. */}}
{{- define "neuronserve.front" -}}
{{ ternary "router" "server" (eq .Values.mode "router") }}
{{- end }}

{{/* Components beside the server that the release has, as words. */}}
{{- define "neuronserve.others" -}}
{{- if eq .Values.mode "router" }}router {{ end }}
{{- if eq .Values.mode "leaderworkerset" }}stage {{ end }}
{{- if include "neuronserve.hasPicker" . }}picker{{ end }}
{{- end }}

{{/* An InferencePool has an endpoint picker of the release, unless another one is named. */}}
{{- define "neuronserve.hasPicker" -}}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) }}true{{ end }}
{{- end }}

{{/* Name of a component's objects. The argument is the list (context, component). */}}
{{- define "neuronserve.componentName" -}}
{{ include "neuronserve.fullname" (index . 0) }}{{ if ne (index . 1) "server" }}-{{ index . 1 }}{{ end }}
{{- end }}

{{/* apiVersion and kind of the workload. */}}
{{- define "neuronserve.workloadKind" -}}
{{- $kinds := dict
      "rayservice" (dict "apiVersion" "ray.io/v1" "kind" "RayService")
      "leaderworkerset" (dict "apiVersion" "leaderworkerset.x-k8s.io/v1" "kind" "LeaderWorkerSet") }}
{{- get $kinds .Values.mode | default (dict "apiVersion" "apps/v1" "kind" .Values.kind) | toYaml }}
{{- end }}

{{/* Whether a component listens with the certificate. The argument is the list (context, component). */}}
{{- define "neuronserve.hasTls" -}}
{{- if and (index . 0).Values.tls.existingSecret (eq (index . 1) (include "neuronserve.front" (index . 0))) }}true{{ end }}
{{- end }}

{{/* NeuronCores of one pod. */}}
{{- define "neuronserve.cores" -}}
{{- mul .Values.tensorParallelSize .Values.dataParallelSize (ternary 1 .Values.pipeline.size (eq .Values.mode "leaderworkerset")) }}
{{- end }}

{{/* The argument is the list (context, component), or (context, component, more labels). */}}
{{- define "neuronserve.labels" -}}
{{- $root := index . 0 }}
{{- $more := ternary (last .) dict (eq (len .) 3) }}
{{- $own := dict
      "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
      "app.kubernetes.io/name" (include "neuronserve.name" $root)
      "app.kubernetes.io/instance" $root.Release.Name
      "app.kubernetes.io/component" (index . 1)
      "app.kubernetes.io/version" (default $root.Chart.AppVersion $root.Values.image.tag | toString | trunc 63 | trimAll "-_.")
      "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- toYaml (merge $own $more $root.Values.commonLabels) }}
{{- end }}

{{- define "neuronserve.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
{{- end }}
{{- end }}

{{/* Where the keys are: a Secret's name, or nothing when the API is open. */}}
{{- define "neuronserve.authSecret" -}}
{{- if .Values.auth.existingSecret -}}
{{ .Values.auth.existingSecret }}
{{- else if .Values.auth.apiKeys -}}
{{ include "neuronserve.fullname" . }}
{{- end }}
{{- end }}

{{- define "neuronserve.authSecretKey" -}}
{{- ternary .Values.auth.existingSecretKey "api-keys" (ne .Values.auth.existingSecret "") }}
{{- end }}

{{- define "neuronserve.scheme" -}}
{{- ternary "https" "http" (ne .Values.tls.existingSecret "") }}
{{- end }}

{{/* The host by which the server is called in the cluster, and for which its certificate must be. */}}
{{- define "neuronserve.serviceHost" -}}
{{ include "neuronserve.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "neuronserve.modelName" -}}
{{- if .Values.model.servedNames }}{{ first .Values.model.servedNames }}{{ else }}{{ default "default" .Values.model.name }}{{ end }}
{{- end }}

{{/* After the server's own limit come 5 s for answers to be read and 5 s for the engine to end, and 5 s to spare. */}}
{{- define "neuronserve.gracePeriod" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{ add .Values.preStopSleepSeconds (ceil .Values.server.shutdownTimeoutSeconds | int) 15 }}
{{- else -}}
{{ .Values.terminationGracePeriodSeconds | int }}
{{- end }}
{{- end }}

{{/* Settings of `neuronserve serve`, under the server's own names; what is empty is left to the server. */}}
{{- define "neuronserve.settings" -}}
{{- $v := .Values }}
{{- $settings := dict
      "device" $v.device
      "tensor_parallel_size" ($v.tensorParallelSize | int)
      "data_parallel_size" ($v.dataParallelSize | int)
      "pace" $v.engine.pace
      "kv_cache_dtype" $v.engine.kvCacheDtype
      "tool_call_parser" $v.server.toolCallParser
      "price_basis" $v.price.basis
      "dtype" $v.model.dtype
      "quantization" $v.model.quantization
      "max_num_seqs" ($v.engine.maxNumSeqs | int)
      "max_num_batched_tokens" ($v.engine.maxNumBatchedTokens | int)
      "max_num_queued_reqs" ($v.engine.maxNumQueuedReqs | int)
      "block_size" ($v.engine.blockSize | int)
      "enable_prefix_caching" $v.engine.enablePrefixCaching
      "device_memory_utilization" $v.engine.deviceMemoryUtilization
      "shutdown_timeout" $v.server.shutdownTimeoutSeconds
      "disable_access_log" (not $v.server.accessLog)
      "log_level" $v.server.logLevel }}
{{- if $v.model.name }}{{ $_ := set $settings "model" $v.model.name }}{{ end }}
{{- if $v.engine.stack }}{{ $_ := set $settings "stack" $v.engine.stack }}{{ end }}
{{- if $v.engine.batching }}{{ $_ := set $settings "batching" $v.engine.batching }}{{ end }}
{{- if $v.model.revision }}{{ $_ := set $settings "revision" $v.model.revision }}{{ end }}
{{- if $v.model.servedNames }}{{ $_ := set $settings "served_model_name" $v.model.servedNames }}{{ end }}
{{- if $v.model.maxModelLen }}{{ $_ := set $settings "max_model_len" ($v.model.maxModelLen | int) }}{{ end }}
{{- if $v.model.modulesToNotConvert }}{{ $_ := set $settings "modules_to_not_convert" $v.model.modulesToNotConvert }}{{ end }}
{{- range $name, $lengths := dict "context_encoding_buckets" $v.engine.contextEncodingBuckets "token_generation_buckets" $v.engine.tokenGenerationBuckets }}
{{- if $lengths }}{{ $_ := set $settings $name $lengths }}{{ end }}
{{- end }}
{{- if not (kindIs "invalid" $v.price.hourlyUsd) }}{{ $_ := set $settings "usd_per_hour" $v.price.hourlyUsd }}{{ end }}
{{- if not (kindIs "invalid" $v.price.spotDiscount) }}{{ $_ := set $settings "spot_discount" $v.price.spotDiscount }}{{ end }}
{{- if $v.tracing.otlpEndpoint }}
{{- $_ := set $settings "otlp_traces_endpoint" $v.tracing.otlpEndpoint }}
{{- $_ := set $settings "otlp_traces_protocol" $v.tracing.otlpProtocol }}
{{- end }}
{{- if $v.auth.keysFileSecret }}{{ $_ := set $settings "api_keys_file" "/etc/neuronserve-keys/keys.yaml" }}{{ end }}
{{- if and (or (include "neuronserve.authSecret" .) $v.auth.keysFileSecret) (not $v.auth.metricsSecret) }}
{{- $_ := set $settings "public_paths" (list "/metrics") }}
{{- end }}
{{- if gt ($v.pipeline.size | int) 1 }}{{ $_ := set $settings "pipeline_parallel_size" ($v.pipeline.size | int) }}{{ end }}
{{- if eq $v.mode "leaderworkerset" }}{{ $_ := set $settings "pipeline_key_file" "/etc/neuronserve-pipeline/key" }}{{ end }}
{{- if include "neuronserve.hasTls" (list . "server") }}
{{- $_ := set $settings "ssl_certfile" "/etc/neuronserve-tls/tls.crt" }}
{{- $_ := set $settings "ssl_keyfile" "/etc/neuronserve-tls/tls.key" }}
{{- end }}
{{- if $v.server.allowedOrigins }}{{ $_ := set $settings "allowed_origins" $v.server.allowedOrigins }}{{ end }}
{{- toYaml $settings }}
{{- end }}

{{/* Label matchers of this release's series. */}}
{{- define "neuronserve.series" -}}
{{- $job := printf "%s%s" (include "neuronserve.fullname" .) (ternary "-headless" "" (eq .Values.mode "router")) }}
{{- default (printf "namespace=%q,job=%q" .Release.Namespace $job) .Values.metrics.selector }}
{{- end }}

{{/* A bucket's bound as Prometheus writes it: 1 is "1.0". */}}
{{- define "neuronserve.bound" -}}
{{- $text := . | float64 | toString }}
{{- if contains "." $text }}{{ $text }}{{ else }}{{ $text }}.0{{ end }}
{{- end }}

{{- define "neuronserve.hasNewClaim" -}}
{{- $p := .Values.cache.persistence }}
{{- if and $p.enabled (not $p.existingClaim) (eq .Values.kind "Deployment") }}true{{ end }}
{{- end }}

{{/* One more pod at a time where a second one can be had: no device and no volume of one node is waited for. */}}
{{- define "neuronserve.strategy" -}}
{{- $v := .Values }}
{{- $isOneNodes := and (include "neuronserve.hasNewClaim" .) (not (has "ReadWriteMany" $v.cache.persistence.accessModes)) }}
{{- $surges := and (eq $v.accelerator.type "emulated") (not $isOneNodes) }}
{{- $own := dict "type" "RollingUpdate" }}
{{- if eq $v.kind "Deployment" }}
{{- $_ := set $own "rollingUpdate" (dict "maxSurge" (ternary 1 0 $surges) "maxUnavailable" (ternary 0 1 $surges)) }}
{{- end }}
{{- toYaml (default $own $v.strategy) }}
{{- end }}

{{/* A rollout that takes longer than the longest start has failed. */}}
{{- define "neuronserve.progressDeadline" -}}
{{- add (mul (.Values.probes.startup.periodSeconds | int64) (.Values.probes.startup.failureThreshold | int64)) 120 }}
{{- end }}
