{{/* What an API server would refuse of the pod: said here with the key to change. */}}
{{- define "neuronserve.checkPod" -}}
{{- include "neuronserve.checkCores" . }}
{{- include "neuronserve.checkStrategy" . }}
{{- include "neuronserve.checkEnvironment" . }}
{{- include "neuronserve.checkScheduling" . }}
{{- $containers := concat (list (dict "name" "server")) .Values.initContainers .Values.extraContainers }}
{{- include "neuronserve.checkUnique" (list $containers "name" "initContainers, extraContainers") }}
{{- include "neuronserve.checkUnique" (list .Values.imagePullSecrets "name" "imagePullSecrets") }}
{{- $volumes := include "neuronserve.volumes" (list . "server") | fromYamlArray }}
{{- if and (eq .Values.kind "StatefulSet") .Values.cache.persistence.enabled }}
{{- $volumes = append $volumes (dict "name" "cache" "persistentVolumeClaim" dict) }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $volumes "name" "extraVolumes") }}
{{- include "neuronserve.checkProjections" . }}
{{- include "neuronserve.checkUnique" (list .Values.podSecurityContext.sysctls "name" "podSecurityContext.sysctls") }}
{{- include "neuronserve.checkHostPorts" . }}
{{- include "neuronserve.checkAppArmor" (list $ $containers) }}
{{- $volumesOf := dict }}
{{- range $volumes }}
{{- $_ := set $volumesOf .name . }}
{{- end }}
{{- $grace := include "neuronserve.gracePeriod" . | int }}
{{- $server := dict "securityContext" .Values.securityContext "env" (include "neuronserve.env" (list . "server") | fromYamlArray) "volumeMounts" (include "neuronserve.volumeMounts" (list . "server") | fromYamlArray) "resources" (include "neuronserve.resources" . | fromYaml) }}
{{- include "neuronserve.checkContainer" (list $server (dict "env" "env" "volumeMounts" "extraVolumeMounts" "resources" "resources") $volumesOf $grace) }}
{{- range $key := list "initContainers" "extraContainers" }}
{{- range $i, $container := get $.Values $key }}
{{- $paths := dict }}
{{- range list "env" "volumeMounts" "volumeDevices" "resources" "ports" "lifecycle" }}
{{- $_ := set $paths . (printf "%s[%d].%s" $key $i .) }}
{{- end }}
{{- include "neuronserve.checkContainer" (list $container $paths $volumesOf $grace) }}
{{- end }}
{{- end }}
{{- if .Values.tests.enabled }}
{{- include "neuronserve.checkResources" (list .Values.tests.resources "tests.resources") }}
{{- end }}
{{- end }}

{{/* The argument is the list (container, key of each of its fields, the pod's volumes by name, its grace period). */}}
{{- define "neuronserve.checkContainer" -}}
{{- $container := index . 0 }}
{{- $paths := index . 1 }}
{{- $volumes := index . 2 }}
{{- $env := default list $container.env }}
{{- include "neuronserve.checkUnique" (list $env "name" $paths.env) }}
{{- range $env }}
{{- if and .value .valueFrom }}
{{- fail (printf "%s: %s has a value and a valueFrom, and may have only one of them" $paths.env .name) }}
{{- end }}
{{- with dig "valueFrom" "fileKeyRef" dict . }}
{{- if not (hasKey (get $volumes .volumeName | default dict) "emptyDir") }}
{{- fail (printf "%s: the file %s is of the volume %s, which must be one of emptyDir" $paths.env .path .volumeName) }}
{{- end }}
{{- end }}
{{- end }}
{{- $mounts := default list $container.volumeMounts }}
{{- include "neuronserve.checkUnique" (list $mounts "mountPath" $paths.volumeMounts) }}
{{- range $mounts }}
{{- if not (hasKey $volumes .name) }}
{{- fail (printf "%s: %s is mounted, and the pod's volumes are %s" $paths.volumeMounts .name (keys $volumes | sortAlpha | join ", ")) }}
{{- end }}
{{- if and (eq (default "" .mountPropagation) "Bidirectional") (not (dig "securityContext" "privileged" false $container)) }}
{{- fail (printf "%s: the mountPropagation of %s is Bidirectional: only a container with securityContext.privileged may have it" $paths.volumeMounts .mountPath) }}
{{- end }}
{{- end }}
{{- $devices := default list $container.volumeDevices }}
{{- include "neuronserve.checkUnique" (list $devices "name" $paths.volumeDevices) }}
{{- range $devices }}
{{- $volume := get $volumes .name | default dict }}
{{- if not (or (hasKey $volume "persistentVolumeClaim") (hasKey $volume "ephemeral")) }}
{{- fail (printf "%s: %s must be a volume of persistentVolumeClaim or ephemeral" $paths.volumeDevices .name) }}
{{- end }}
{{- end }}
{{- range $hook, $handler := default dict $container.lifecycle }}
{{- $seconds := dig "sleep" "seconds" 0 (default dict $handler) | int64 }}
{{- if gt $seconds (index $ 3 | int64) }}
{{- fail (printf "%s.%s.sleep.seconds is %d: it must be at most the grace period, %d" $paths.lifecycle $hook $seconds (index $ 3)) }}
{{- end }}
{{- end }}
{{- $named := list }}
{{- $numbered := list }}
{{- range default list $container.ports }}
{{- if .name }}
{{- $named = append $named . }}
{{- end }}
{{- $numbered = append $numbered (dict "containerPort and protocol" (printf "%d/%s" (int .containerPort) (default "TCP" .protocol))) }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $named "name" $paths.ports) }}
{{- include "neuronserve.checkUnique" (list $numbered "containerPort and protocol" $paths.ports) }}
{{- include "neuronserve.checkResources" (list (default dict $container.resources) $paths.resources) }}
{{- end }}

{{/* The argument is the list (objects, field that tells them apart, key to change). */}}
{{- define "neuronserve.checkUnique" -}}
{{- $field := index . 1 }}
{{- $seen := dict }}
{{- range index . 0 }}
{{- $value := get . $field | toString }}
{{- if hasKey $seen $value }}
{{- fail (printf "%s: there are two with the %s %q" (index $ 2) $field $value) }}
{{- end }}
{{- $_ := set $seen $value true }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkCores" -}}
{{- $v := .Values }}
{{- $cores := include "neuronserve.cores" . | int }}
{{- $device := get (.Files.Get "files/devices.json" | fromJson) $v.device }}
{{- if gt ($cores | int) ($device.cores | int) }}
{{- fail (printf "dataParallelSize is %v: with tensorParallelSize %v and pipeline.size %v it needs %v NeuronCores, and %s has %v" $v.dataParallelSize $v.tensorParallelSize $v.pipeline.size $cores $v.device $device.cores) }}
{{- end }}
{{- if and (eq $v.accelerator.type "neuron") $v.accelerator.count }}
{{- $per := ternary 1 $device.coresPerDevice (eq $v.accelerator.resourceName "aws.amazon.com/neuroncore") | int }}
{{- if lt (mul $v.accelerator.count $per | int) ($cores | int) }}
{{- fail (printf "accelerator.count is %v: %v %s have fewer than the %v NeuronCores of tensorParallelSize x dataParallelSize x pipeline.size" $v.accelerator.count $v.accelerator.count $v.accelerator.resourceName $cores) }}
{{- end }}
{{- if gt (mul $v.accelerator.count $per | int) ($device.cores | int) }}
{{- fail (printf "accelerator.count is %v: %s has %v NeuronCores, so no node has that many %s" $v.accelerator.count $v.device $device.cores $v.accelerator.resourceName) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The argument is the list (resources, their key). Of extended resources and huge pages a container gets what it is
limited to, as a whole number. */}}
{{- define "neuronserve.checkResources" -}}
{{- $key := index . 1 }}
{{- $requests := default dict (index . 0).requests }}
{{- $limits := default dict (index . 0).limits }}
{{- range $name, $request := $requests }}
{{- $limit := get $limits $name }}
{{- $isCounted := or (contains "/" $name) (hasPrefix "hugepages-" $name) }}
{{- if and $isCounted (not (hasKey $limits $name)) }}
{{- fail (printf "%s.requests.%s is %v: it must be equal to %s.limits.%s, which is missing" $key $name $request $key $name) }}
{{- end }}
{{- if hasKey $limits $name }}
{{- $more := subf (include "neuronserve.quantity" $request | float64) (include "neuronserve.quantity" $limit | float64) }}
{{- if or (gt $more 0.0) (and $isCounted (ne $more 0.0)) }}
{{- fail (printf "%s.requests.%s is %v: it must be %s %s.limits.%s, %v" $key $name $request (ternary "equal to" "at most" $isCounted) $key $name $limit) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $limit := $limits }}
{{- $amount := include "neuronserve.quantity" $limit | float64 }}
{{- if and (contains "/" $name) (ne $amount (floor $amount)) }}
{{- fail (printf "%s.limits.%s is %v: it must be a whole number" $key $name $limit) }}
{{- end }}
{{- if hasPrefix "hugepages-" $name }}
{{- $pages := divf $amount (include "neuronserve.quantity" (trimPrefix "hugepages-" $name) | float64) }}
{{- if ne $pages (floor $pages) }}
{{- fail (printf "%s.limits.%s is %v: it must be a multiple of the page" $key $name $limit) }}
{{- end }}
{{- $all := merge dict $limits $requests }}
{{- if not (or (hasKey $all "cpu") (hasKey $all "memory")) }}
{{- fail (printf "%s.limits.%s is %v: huge pages need cpu or memory beside them" $key $name $limit) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A quantity such as 500m, 2Gi or 1e3 as a plain number. */}}
{{- define "neuronserve.quantity" -}}
{{- $text := toString . }}
{{- $suffix := regexFind "([KMGTPE]i|[numkMGTPE])$" $text }}
{{- $units := dict "" 1 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
      "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 }}
{{- mulf (trimSuffix $suffix $text | float64) (get $units $suffix | float64) }}
{{- end }}

{{- define "neuronserve.checkStrategy" -}}
{{- $s := .Values.strategy }}
{{- $rolling := default dict $s.rollingUpdate }}
{{- $type := default "RollingUpdate" $s.type }}
{{- $isSet := eq .Values.kind "StatefulSet" }}
{{- if eq $type (ternary "Recreate" "OnDelete" $isSet) }}
{{- fail (printf "strategy.type is %s: a %s does not have it" $type .Values.kind) }}
{{- end }}
{{- if hasKey $rolling (ternary "maxSurge" "partition" $isSet) }}
{{- fail (printf "strategy.rollingUpdate.%s: a %s does not have it" (ternary "maxSurge" "partition" $isSet) .Values.kind) }}
{{- end }}
{{- if and $rolling (ne $type "RollingUpdate") }}
{{- fail (printf "strategy.rollingUpdate: strategy.type is %s" $type) }}
{{- end }}
{{- $hasNone := eq (toString $rolling.maxUnavailable | trimSuffix "%") "0" }}
{{- if and $hasNone (or $isSet (eq (toString $rolling.maxSurge | trimSuffix "%") "0")) }}
{{- fail "strategy.rollingUpdate.maxUnavailable is 0: then no pod could be replaced" }}
{{- end }}
{{- end }}

{{/* The environment wins over the ConfigMap, so a value of the chart must not be set there a second time. */}}
{{- define "neuronserve.checkEnvironment" -}}
{{- $owned := include "neuronserve.owned" . | fromYaml }}
{{- range .Values.env }}
{{- $flag := trimPrefix "NEURONSERVE_" .name | lower | replace "_" "-" }}
{{- if and (hasPrefix "NEURONSERVE_" .name) (hasKey $owned $flag) (ne $flag "cpu-threads") }}
{{- fail (printf "env: %s is set by %s" .name (get $owned $flag)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkScheduling" -}}
{{- $spread := list }}
{{- range $i, $each := .Values.topologySpreadConstraints }}
{{- if and $each.minDomains (ne $each.whenUnsatisfiable "DoNotSchedule") }}
{{- fail (printf "topologySpreadConstraints[%d].minDomains is %v: it needs whenUnsatisfiable DoNotSchedule" $i $each.minDomains) }}
{{- end }}
{{- $spread = append $spread (dict "topologyKey and whenUnsatisfiable" (printf "%s, %s" $each.topologyKey $each.whenUnsatisfiable)) }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $spread "topologyKey and whenUnsatisfiable" "topologySpreadConstraints") }}
{{- range $i, $each := .Values.tolerations }}
{{- $operator := default "Equal" $each.operator }}
{{- if and (not $each.key) (ne $operator "Exists") }}
{{- fail (printf "tolerations[%d].operator is %s: without a key it must be Exists" $i $operator) }}
{{- end }}
{{- if and $each.value (eq $operator "Exists") }}
{{- fail (printf "tolerations[%d].value is %s: with operator Exists there must be none" $i $each.value) }}
{{- end }}
{{- if and (hasKey $each "tolerationSeconds") (ne (default "" $each.effect) "NoExecute") }}
{{- fail (printf "tolerations[%d].tolerationSeconds is %v: it needs effect NoExecute" $i $each.tolerationSeconds) }}
{{- end }}
{{- end }}
{{- $deadline := include "neuronserve.progressDeadline" . | int64 }}
{{- if gt $deadline 2147483647 }}
{{- fail (printf "probes.startup.failureThreshold is %v: with periodSeconds %v a rollout may take %d s, and the most is 2147483647" .Values.probes.startup.failureThreshold .Values.probes.startup.periodSeconds $deadline) }}
{{- end }}
{{- end }}
