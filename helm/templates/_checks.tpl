{{/* What a schema cannot say: values that contradict each other. Each message begins with the key to change. */}}
{{- define "neuronserve.checks" -}}
{{- $v := .Values }}
{{- if lt ($v.engine.maxNumBatchedTokens | int) ($v.engine.maxNumSeqs | int) }}
{{- fail (printf "engine.maxNumBatchedTokens is %v: it must be at least engine.maxNumSeqs, %v" $v.engine.maxNumBatchedTokens $v.engine.maxNumSeqs) }}
{{- end }}
{{- if eq ($v.server.healthPort | int) ($v.server.port | int) }}
{{- fail (printf "server.healthPort is %v: it must differ from server.port" $v.server.healthPort) }}
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
{{- if and (eq $v.price.basis "spot") (kindIs "invalid" $v.price.spotDiscount) (kindIs "invalid" $v.price.hourlyUsd) }}
{{- fail "price.basis is spot: it needs price.spotDiscount or price.hourlyUsd" }}
{{- end }}
{{- include "neuronserve.checkMode" . }}
{{- include "neuronserve.checkHosts" . }}
{{- include "neuronserve.checkNetwork" . }}
{{- include "neuronserve.checkScrape" . }}
{{- include "neuronserve.checkCache" . }}
{{- include "neuronserve.checkPod" . }}
{{- include "neuronserve.checkArguments" . }}
{{- include "neuronserve.checkLive" . }}
{{- end }}

{{- define "neuronserve.checkHosts" -}}
{{- range $i, $host := .Values.ingress.hosts }}
{{- if regexMatch "^[0-9]+([.][0-9]+){3}$" $host }}
{{- fail (printf "ingress.hosts[%d] is %s: it must be a host name, and no IP address" $i $host) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Prometheus Operator drops a ServiceMonitor without a word to the release when this does not hold. */}}
{{- define "neuronserve.checkScrape" -}}
{{- $m := .Values.serviceMonitor }}
{{- if gt (include "neuronserve.seconds" $m.scrapeTimeout | float64) (include "neuronserve.seconds" $m.interval | float64) }}
{{- fail (printf "serviceMonitor.scrapeTimeout is %s: it must be at most serviceMonitor.interval, %s" $m.scrapeTimeout $m.interval) }}
{{- end }}
{{- end }}

{{/* A duration such as 1m30s. */}}
{{- define "neuronserve.seconds" -}}
{{- $total := 0.0 }}
{{- $units := dict "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800 "y" 31536000 }}
{{- range regexFindAll "[0-9]+(ms|[smhdwy])" . -1 }}
{{- $total = addf $total (mulf (regexFind "[0-9]+" . | float64) (get $units (regexFind "[a-z]+" .) | float64)) }}
{{- end }}
{{- $total }}
{{- end }}

{{- define "neuronserve.checkCache" -}}
{{- $v := .Values }}
{{- $p := $v.cache.persistence }}
{{- $there := dig "spec" "replicas" 1 (include "neuronserve.live" . | fromYaml) }}
{{- $several := or (has $v.mode (list "rayservice" "leaderworkerset")) (gt (ternary $there $v.replicaCount (kindIs "invalid" $v.replicaCount) | int) 1) $v.autoscaling.enabled }}
{{- if and (gt (len $p.accessModes) 1) (has "ReadWriteOncePod" $p.accessModes) }}
{{- fail (printf "cache.persistence.accessModes is %s: ReadWriteOncePod must be the only one" (join "," $p.accessModes)) }}
{{- end }}
{{- if and $p.enabled $p.existingClaim (eq $v.kind "StatefulSet") }}
{{- fail "cache.persistence.existingClaim: a StatefulSet makes a claim for each pod; use kind Deployment" }}
{{- end }}
{{- if and (include "neuronserve.hasNewClaim" .) $several (not (has "ReadWriteMany" $p.accessModes)) }}
{{- fail "cache.persistence.accessModes: several pods of a Deployment need ReadWriteMany; kind StatefulSet gives each its own volume" }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkArguments" -}}
{{- $owned := include "neuronserve.owned" . | fromYaml }}
{{- range .Values.extraArgs }}
{{- $flag := regexReplaceAll "^--([^=]*).*$" . "${1}" | trimPrefix "no-" }}
{{- if and (hasPrefix "--" .) (hasKey $owned $flag) }}
{{- fail (printf "extraArgs: --%s is set by %s" $flag (get $owned $flag)) }}
{{- end }}
{{- end }}
{{- range $key, $given := dict "router.extraArgs" .Values.router.extraArgs "inferencePool.endpointPicker.extraArgs" .Values.inferencePool.endpointPicker.extraArgs }}
{{- range $given }}
{{- $flag := regexReplaceAll "^--([^=]*).*$" . "${1}" }}
{{- if has $flag (list "host" "port" "shutdown-timeout" "ssl-certfile" "ssl-keyfile" "allowed-origins" "grpc-health-port" "metrics-port") }}
{{- fail (printf "%s: --%s is set by the chart" $key $flag) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Flags of the server that values of the chart set, and these values. */}}
{{- define "neuronserve.owned" -}}
config: other values
pipeline-parallel-size: pipeline.size
pipeline-stages: mode
pipeline-key-file: pipeline.existingSecret
host: server.host
port: server.port
health-port: server.healthPort
api-key: auth
api-keys-file: auth.keysFileSecret
public-paths: auth.metricsSecret
ssl-certfile: tls.existingSecret
ssl-keyfile: tls.existingSecret
model: model.name
revision: model.revision
served-model-name: model.servedNames
dtype: model.dtype
quantization: model.quantization
modules-to-not-convert: model.modulesToNotConvert
max-model-len: model.maxModelLen
device: device
tensor-parallel-size: tensorParallelSize
data-parallel-size: dataParallelSize
stack: engine.stack
batching: engine.batching
pace: engine.pace
context-encoding-buckets: engine.contextEncodingBuckets
token-generation-buckets: engine.tokenGenerationBuckets
max-num-seqs: engine.maxNumSeqs
max-num-batched-tokens: engine.maxNumBatchedTokens
max-num-queued-reqs: engine.maxNumQueuedReqs
block-size: engine.blockSize
kv-cache-dtype: engine.kvCacheDtype
enable-prefix-caching: engine.enablePrefixCaching
device-memory-utilization: engine.deviceMemoryUtilization
shutdown-timeout: server.shutdownTimeoutSeconds
disable-access-log: server.accessLog
log-level: server.logLevel
tool-call-parser: server.toolCallParser
allowed-origins: server.allowedOrigins
cpu-threads: resources
price-basis: price.basis
spot-discount: price.spotDiscount
usd-per-hour: price.hourlyUsd
otlp-traces-endpoint: tracing.otlpEndpoint
otlp-traces-protocol: tracing.otlpProtocol
{{- end }}
