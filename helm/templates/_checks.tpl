{{/* What a schema cannot say: values that contradict each other. Each message begins with the key to change. */}}
{{- define "neuronserve.checks" -}}
{{- $v := .Values }}
{{- if lt ($v.engine.maxNumBatchedTokens | int) ($v.engine.maxNumSeqs | int) }}
{{- fail (printf "engine.maxNumBatchedTokens is %v: it must be at least engine.maxNumSeqs, %v" $v.engine.maxNumBatchedTokens $v.engine.maxNumSeqs) }}
{{- end }}
{{- if not (kindIs "invalid" $v.terminationGracePeriodSeconds) }}
{{- $needed := addf $v.preStopSleepSeconds $v.server.shutdownTimeoutSeconds }}
{{- if le ($v.terminationGracePeriodSeconds | float64) $needed }}
{{- fail (printf "terminationGracePeriodSeconds is %v: it must be above preStopSleepSeconds + server.shutdownTimeoutSeconds, %v" $v.terminationGracePeriodSeconds $needed) }}
{{- end }}
{{- end }}
{{- if and $v.model.existingClaim (not (hasPrefix "/models" $v.model.name)) }}
{{- fail (printf "model.name is %q: with model.existingClaim it must be a directory below /models" $v.model.name) }}
{{- end }}
{{- if and $v.auth.existingSecret $v.auth.apiKeys }}
{{- fail "auth.apiKeys: give keys here or name a Secret in auth.existingSecret, not both" }}
{{- end }}
{{- if and $v.autoscaling.enabled (gt ($v.autoscaling.minReplicas | int) ($v.autoscaling.maxReplicas | int)) }}
{{- fail (printf "autoscaling.minReplicas is %v: it must be at most autoscaling.maxReplicas, %v" $v.autoscaling.minReplicas $v.autoscaling.maxReplicas) }}
{{- end }}
{{- if and $v.httpRoute.enabled $v.httpRoute.useInferencePool (not $v.inferencePool.enabled) }}
{{- fail "httpRoute.useInferencePool: needs inferencePool.enabled" }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) }}
{{- fail "ingress.hosts: name at least one host" }}
{{- end }}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) }}
{{- fail "httpRoute.parentRefs: name at least one gateway" }}
{{- end }}
{{- include "neuronserve.checkCache" . }}
{{- include "neuronserve.checkArguments" . }}
{{- end }}

{{- define "neuronserve.checkCache" -}}
{{- $v := .Values }}
{{- $p := $v.cache.persistence }}
{{- $several := or (gt ($v.replicaCount | int) 1) $v.autoscaling.enabled }}
{{- if and $p.enabled $p.existingClaim (eq $v.kind "StatefulSet") }}
{{- fail "cache.persistence.existingClaim: a StatefulSet makes a claim for each pod; use kind Deployment" }}
{{- end }}
{{- if and (include "neuronserve.hasNewClaim" .) $several (not (has "ReadWriteMany" $p.accessModes)) }}
{{- fail "cache.persistence.accessModes: several pods of a Deployment need ReadWriteMany; kind StatefulSet gives each its own volume" }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkArguments" -}}
{{- $owned := dict
      "config" "other values" "host" "server.host" "port" "server.port" "api-key" "auth" "device" "device"
      "tensor-parallel-size" "tensorParallelSize" "dtype" "model.dtype" "revision" "model.revision"
      "quantization" "model.quantization" "modules-to-not-convert" "model.modulesToNotConvert"
      "otlp-traces-endpoint" "tracing.otlpEndpoint" "allowed-origins" "server.allowedOrigins"
      "served-model-name" "model.servedNames" "max-model-len" "model.maxModelLen"
      "shutdown-timeout" "server.shutdownTimeoutSeconds" "cpu-threads" "resources" "log-level" "server.logLevel"
      "max-num-seqs" "engine.maxNumSeqs" "max-num-batched-tokens" "engine.maxNumBatchedTokens"
      "max-num-queued-reqs" "engine.maxNumQueuedReqs" "block-size" "engine.blockSize" }}
{{- range .Values.extraArgs }}
{{- $flag := regexReplaceAll "^--([^=]*).*$" . "${1}" }}
{{- if and (hasPrefix "--" .) (hasKey $owned $flag) }}
{{- fail (printf "extraArgs: --%s is set by %s" $flag (get $owned $flag)) }}
{{- end }}
{{- end }}
{{- end }}
