{{/* What an API server would refuse of the pod: said here with the key to change. */}}
{{- define "neuronserve.checkPod" -}}
{{- include "neuronserve.checkCores" . }}
{{- include "neuronserve.checkResources" . }}
{{- include "neuronserve.checkStrategy" . }}
{{- include "neuronserve.checkEnvironment" . }}
{{- $containers := concat (list (dict "name" "server")) .Values.initContainers .Values.extraContainers }}
{{- include "neuronserve.checkUnique" (list $containers "name" "initContainers, extraContainers") }}
{{- $pod := include "neuronserve.volumes" . | fromYamlArray }}
{{- if and (eq .Values.kind "StatefulSet") .Values.cache.persistence.enabled }}
{{- $pod = append $pod (dict "name" "cache") }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $pod "name" "extraVolumes") }}
{{- include "neuronserve.checkUnique" (list (include "neuronserve.volumeMounts" . | fromYamlArray) "mountPath" "extraVolumeMounts") }}
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
{{- $cores := mul $v.tensorParallelSize $v.dataParallelSize }}
{{- $device := get (.Files.Get "files/devices.json" | fromJson) $v.device }}
{{- if gt ($cores | int) ($device.cores | int) }}
{{- fail (printf "dataParallelSize is %v: with tensorParallelSize %v it needs %v NeuronCores, and %s has %v" $v.dataParallelSize $v.tensorParallelSize $cores $v.device $device.cores) }}
{{- end }}
{{- if and (eq $v.accelerator.type "neuron") $v.accelerator.count }}
{{- $per := ternary 1 $device.coresPerDevice (eq $v.accelerator.resourceName "aws.amazon.com/neuroncore") | int }}
{{- if lt (mul $v.accelerator.count $per | int) ($cores | int) }}
{{- fail (printf "accelerator.count is %v: %v %s have fewer than the %v NeuronCores of tensorParallelSize x dataParallelSize" $v.accelerator.count $v.accelerator.count $v.accelerator.resourceName $cores) }}
{{- end }}
{{- if gt (mul $v.accelerator.count $per | int) ($device.cores | int) }}
{{- fail (printf "accelerator.count is %v: %s has %v NeuronCores, so no node has that many %s" $v.accelerator.count $v.device $device.cores $v.accelerator.resourceName) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkResources" -}}
{{- $limits := default dict .Values.resources.limits }}
{{- range $name, $request := default dict .Values.resources.requests }}
{{- if hasKey $limits $name }}
{{- $limit := get $limits $name }}
{{- if gt (include "neuronserve.quantity" $request | float64) (include "neuronserve.quantity" $limit | float64) }}
{{- fail (printf "resources.requests.%s is %v: it must be at most resources.limits.%s, %v" $name $request $name $limit) }}
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
{{- $none := list "0" "0%" }}
{{- if and (has (toString $rolling.maxUnavailable) $none) (or $isSet (has (toString $rolling.maxSurge) $none)) }}
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
{{- include "neuronserve.checkUnique" (list (include "neuronserve.env" . | fromYamlArray) "name" "env") }}
{{- end }}
