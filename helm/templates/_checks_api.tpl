{{/* Rules of an API server that hold between containers, volumes and addresses, which a schema cannot compare. */}}

{{/* Containers of a pod share its host's ports; init containers run one after another. */}}
{{- define "neuronserve.checkHostPorts" -}}
{{- $groups := list .Values.extraContainers }}
{{- range .Values.initContainers }}
{{- $groups = append $groups (list .) }}
{{- end }}
{{- range $groups }}
{{- $taken := list }}
{{- range . }}
{{- range default list .ports }}
{{- if .hostPort }}
{{- $taken = append $taken (dict "hostPort" (printf "%s/%s/%d" (default "TCP" .protocol) (default "" .hostIP) (int .hostPort))) }}
{{- end }}
{{- end }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $taken "hostPort" "initContainers, extraContainers") }}
{{- end }}
{{- end }}

{{/* The argument is the list (context, containers). */}}
{{- define "neuronserve.checkAppArmor" -}}
{{- $names := list }}
{{- range index . 1 }}
{{- $names = append $names .name }}
{{- end }}
{{- range $key, $profile := (index . 0).Values.podAnnotations }}
{{- $name := trimPrefix "container.apparmor.security.beta.kubernetes.io/" $key }}
{{- if and (ne $name $key) (not (has $name $names)) }}
{{- fail (printf "podAnnotations: %s is of no container of the pod, which has %s" $key (join ", " $names)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Files of one projected volume have names of their own. */}}
{{- define "neuronserve.checkProjections" -}}
{{- range $i, $volume := .Values.extraVolumes }}
{{- $files := list }}
{{- range dig "projected" "sources" list $volume }}
{{- range . }}
{{- $source := default dict . }}
{{- $files = concat $files (default list $source.items) }}
{{- range list "path" "credentialBundlePath" "keyPath" "certificateChainPath" }}
{{- with get $source . }}
{{- $files = append $files (dict "path" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- include "neuronserve.checkUnique" (list $files "path" (printf "extraVolumes[%d].projected" $i)) }}
{{- end }}
{{- end }}

{{/* The address of a block of IPv4 as a number. */}}
{{- define "neuronserve.address" -}}
{{- $number := 0 }}
{{- range splitList "." (splitList "/" . | first) }}
{{- $number = add (mul $number 256) (int64 .) }}
{{- end }}
{{- $number }}
{{- end }}

{{/* 2 to the power of the bits that a block of IPv4 leaves to its hosts. */}}
{{- define "neuronserve.hosts" -}}
{{- $hosts := 1 }}
{{- range until (sub 32 (splitList "/" . | last | int) | int) }}
{{- $hosts = mul $hosts 2 }}
{{- end }}
{{- $hosts }}
{{- end }}

{{/* The argument is the list (block, key). Blocks of IPv6 are checked by the schema's pattern alone. */}}
{{- define "neuronserve.checkBlock" -}}
{{- $block := index . 0 }}
{{- if contains "." $block }}
{{- if mod (include "neuronserve.address" $block | int64) (include "neuronserve.hosts" $block | int64) }}
{{- fail (printf "%s: %s has bits beyond its prefix" (index . 1) $block) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The argument is the list (peers, key). */}}
{{- define "neuronserve.checkPeers" -}}
{{- $key := index . 1 }}
{{- range $peer := default list (index . 0) }}
{{- with $peer.ipBlock }}
{{- $outer := .cidr }}
{{- include "neuronserve.checkBlock" (list $outer $key) }}
{{- range default list .except }}
{{- include "neuronserve.checkBlock" (list . $key) }}
{{- $isInside := and (eq (contains "." .) (contains "." $outer)) (gt (splitList "/" . | last | int) (splitList "/" $outer | last | int)) }}
{{- if and $isInside (contains "." .) }}
{{- $hosts := include "neuronserve.hosts" $outer | int64 }}
{{- $isInside = eq (div (include "neuronserve.address" . | int64) $hosts) (div (include "neuronserve.address" $outer | int64) $hosts) }}
{{- end }}
{{- if not $isInside }}
{{- fail (printf "%s: except is %s, which is no part of %s" $key . $outer) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "neuronserve.checkNetwork" -}}
{{- $v := .Values }}
{{- include "neuronserve.checkPeers" (list $v.networkPolicy.ingressFrom "networkPolicy.ingressFrom") }}
{{- range $i, $rule := $v.networkPolicy.extraEgress }}
{{- include "neuronserve.checkPeers" (list $rule.to (printf "networkPolicy.extraEgress[%d].to" $i)) }}
{{- range default list $rule.ports }}
{{- if and .endPort (lt (int .endPort) (int .port)) }}
{{- fail (printf "networkPolicy.extraEgress[%d].ports: endPort is %v: it must be at least port, %v" $i .endPort .port) }}
{{- end }}
{{- end }}
{{- end }}
{{- $ranges := "service.beta.kubernetes.io/load-balancer-source-ranges" }}
{{- with get $v.service.annotations $ranges }}
{{- if ne $v.service.type "LoadBalancer" }}
{{- fail (printf "service.annotations: %s needs service.type LoadBalancer" $ranges) }}
{{- end }}
{{- range splitList "," . }}
{{- include "neuronserve.checkBlock" (list (trim .) "service.annotations") }}
{{- end }}
{{- end }}
{{- $class := get $v.ingress.annotations "kubernetes.io/ingress.class" }}
{{- if and $class $v.ingress.className (ne $class $v.ingress.className) }}
{{- fail (printf "ingress.className is %s: the annotation kubernetes.io/ingress.class is %s" $v.ingress.className $class) }}
{{- end }}
{{- end }}
