{{/* Helm 4 applies on the server, where a value that another manager has set is a conflict: objects that come before it
have changed by then. So each object is compared with the live one first. */}}
{{- define "neuronserve.checkConflicts" -}}
{{- $isNew := semverCompare ">=4.0.0-0" .Capabilities.HelmVersion.Version }}
{{- if and .Release.IsUpgrade $isNew }}
{{- $texts := list (include "neuronserve.workload" .) }}
{{- range list "router" "picker" "networkpolicy" "pdb" "serviceaccount" "secret" "dashboard" "pvc" "service" "hpa" "ingress" }}
{{- $texts = concat $texts (splitList "\n---" (include (printf "%s/%s.yaml" $.Template.BasePath .) $)) }}
{{- end }}
{{- range $texts }}
{{- $wanted := fromYaml . }}
{{- if $wanted.kind }}
{{- include "neuronserve.checkConflict" (list $ $wanted (lookup $wanted.apiVersion $wanted.kind $.Release.Namespace $wanted.metadata.name)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The argument is the list (context, manifest, live object). The remedy ends what others manage, and no value changes by it. */}}
{{- define "neuronserve.checkConflict" -}}
{{- $root := index . 0 }}
{{- $wanted := index . 1 }}
{{- $live := index . 2 }}
{{- $said := list }}
{{- $patch := list }}
{{- if include "neuronserve.isApplied" (list $root $live) }}
{{- range $i, $entry := $live.metadata.managedFields }}
{{- if not (and (contains "helm" $entry.manager) (eq $entry.operation "Apply")) }}
{{- with include "neuronserve.contested" (list $entry.fieldsV1 $wanted $live) | fromYamlArray }}
{{- $said = append $said (printf "%s has set %s" $entry.manager (join ", " .)) }}
{{- $path := printf "/metadata/managedFields/%d" $i }}
{{- $patch = concat (list (dict "op" "test" "path" (printf "%s/manager" $path) "value" $entry.manager) (dict "op" "remove" "path" $path)) $patch }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $said }}
{{- $object := printf "%s/%s" (lower $wanted.kind) $wanted.metadata.name }}
{{- fail (printf "%s: %s, and Helm would stop there, with other objects changed. To let Helm set it, first run kubectl -n %s patch %s --type=json -p '%s'" $object (join "; " $said) $root.Release.Namespace $object (toJson $patch)) }}
{{- end }}
{{- end }}

{{/* Paths at which a manifest has another value than the live object, of those that an entry of managedFields owns. The
argument is the list (fields, part of the manifest, part of the live object), or (..., path of them). */}}
{{- define "neuronserve.contested" -}}
{{- $wanted := index . 1 }}
{{- $live := index . 2 }}
{{- $path := ternary (last .) "" (eq (len .) 4) }}
{{- range $key, $below := index . 0 }}
{{- $mine := "" }}
{{- $theirs := "" }}
{{- $name := trimPrefix "f:" $key }}
{{- $isThere := false }}
{{- if and (hasPrefix "f:" $key) (kindIs "map" $wanted) (kindIs "map" $live) }}
{{- $isThere = and (hasKey $wanted $name) (hasKey $live $name) }}
{{- $mine = get $wanted $name }}
{{- $theirs = get $live $name }}
{{- else if and (hasPrefix "k:" $key) (kindIs "slice" $wanted) (kindIs "slice" $live) }}
{{- $of := trimPrefix "k:" $key | fromJson }}
{{- $name = values $of | sortAlpha | join "/" }}
{{- $mine = include "neuronserve.item" (list $wanted $of) | fromYaml }}
{{- $theirs = include "neuronserve.item" (list $live $of) | fromYaml }}
{{- $isThere = and $mine $theirs }}
{{- end }}
{{- if $isThere }}
{{- $at := ternary (printf "%s.%s" $path $name) $name (ne $path "") }}
{{- if $below }}
{{- include "neuronserve.contested" (list $below $mine $theirs $at) }}
{{- else if ne (toJson $mine) (toJson $theirs) }}
- {{ $at | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The item of a list that has some values. The argument is the list (items, values). */}}
{{- define "neuronserve.item" -}}
{{- $of := index . 1 }}
{{- range $item := index . 0 }}
{{- $is := true }}
{{- range $key, $value := $of }}
{{- if and (hasKey $item $key) (ne (toString (get $item $key)) (toString $value)) }}
{{- $is = false }}
{{- end }}
{{- end }}
{{- if $is }}
{{- toYaml $item }}
{{- end }}
{{- end }}
{{- end }}
