{{/* Values that a mode does not have: refused, because it would leave them out. The argument is the context. */}}
{{- define "neuronserve.checkMode" -}}
{{- $v := .Values }}
{{- $isRay := eq $v.mode "rayservice" }}
{{- $isGroups := eq $v.mode "leaderworkerset" }}
{{- $rules := list
      (list (and (or $isRay $isGroups) (ne $v.kind "Deployment")) (printf "kind is %s: mode %s has pods of its own" $v.kind $v.mode))
      (list (and $v.inferencePool.enabled (has $v.mode (list "router" "rayservice"))) (printf "inferencePool.enabled is true: in mode %s a router chooses the server already" $v.mode))
      (list (and $isRay $v.autoscaling.enabled) "autoscaling.enabled is true: mode rayservice has the workers of replicaCount")
      (list (and $isGroups (lt ($v.pipeline.size | int) 2)) (printf "pipeline.size is %v: mode leaderworkerset needs at least 2" $v.pipeline.size))
      (list (and $isGroups (not $v.pipeline.existingSecret)) "pipeline.existingSecret: name the Secret with the key that the stages of mode leaderworkerset share")
      (list (and $isGroups (gt ($v.dataParallelSize | int) 1)) (printf "dataParallelSize is %v: a stage of mode leaderworkerset computes for one engine; set replicaCount" $v.dataParallelSize))
      (list (and $isGroups $v.model.revision) (printf "model.revision is %s: stages of mode leaderworkerset take the model's default; use model.existingClaim" $v.model.revision))
      (list (and $isGroups (contains ":" $v.server.host)) (printf "server.host is %s: stages of mode leaderworkerset listen on IPv4" $v.server.host))
      (list (and $isGroups (eq $v.strategy.type "Recreate")) "strategy.type is Recreate: a LeaderWorkerSet does not have it")
      (list (and $isRay (not (empty $v.extraArgs))) (printf "extraArgs is %s: mode rayservice has no command line; set NEURONSERVE_ variables in env" (join " " $v.extraArgs)))
      (list (and $isRay (not (empty $v.strategy))) "strategy: mode rayservice has ray.upgradeType")
      (list (and $isRay $v.tls.existingSecret) (printf "tls.existingSecret is %s: Ray Serve speaks plain HTTP; end TLS at an Ingress or Gateway" $v.tls.existingSecret))
      (list (and $isRay (or $v.serviceMonitor.enabled $v.auth.metricsSecret)) "serviceMonitor.enabled, auth.metricsSecret: in mode rayservice any pod shows the metrics of all; scrape the Service as one target, without a key")
      (list (and $isRay $v.networkPolicy.enabled) "networkPolicy.enabled is true: Ray's nodes and its operator use many ports; in mode rayservice write a policy for them in extraObjects")
      (list (and $isRay $v.pdb.enabled (kindIs "string" $v.pdb.maxUnavailable)) (printf "pdb.maxUnavailable is %v: in mode rayservice it must be a number" $v.pdb.maxUnavailable)) }}
{{- range $rules }}
{{- if first . }}
{{- fail (last .) }}
{{- end }}
{{- end }}
{{- end }}
