{{- /*
The templates whose objects patches can select. Each is defined in the file of its name.
*/ -}}
{{- define "fairlead.templates" -}}
{{- $all := list "crds" "policy" "settings" "controller" "webhook" "webhook-certificate" "networkpolicy" "xds-server" -}}
{{- $all = concat $all (list "viewer" "gateway" "page" "page-route" "metrics-podmonitor" "metrics-rules") -}}
{{- $all = concat $all (list "metrics-networkpolicy" "metrics-dashboard" "extension" "extension-certificate") -}}
{{- concat $all (list "extension-client" "extension-config") | toJson -}}
{{- end -}}

{{- /*
Renders a template of the chart, given (list root name). An object that no value patches or labels keeps the text and
the comments of its template.
*/ -}}
{{- define "fairlead.render" -}}
{{- $root := index . 0 -}}
{{- $text := include (printf "fairlead.%s" (index . 1)) $root -}}
{{- range $document := splitList "\n---" (printf "\n%s" $text) }}
{{- $object := fromYaml $document }}
{{- if hasKey $object "Error" }}
{{- fail (printf "template %s: %s" (index $ 1) $object.Error) }}
{{- end }}
{{- if $object }}
{{- $state := dict "changed" false "deleted" false }}
{{- include "fairlead.change" (list $root $object $state) }}
{{- if not $state.deleted }}
---
{{ if $state.changed }}{{ toYaml $object }}{{ else }}{{ trim $document }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Applies values.commonLabels and values.patches to an object, given (list root object state). */ -}}
{{- define "fairlead.change" -}}
{{- $root := index . 0 -}}
{{- $object := index . 1 -}}
{{- $state := index . 2 -}}
{{- with $root.Values.commonLabels -}}
{{- include "fairlead.merge" (list $object (dict "metadata" (dict "labels" .))) -}}
{{- if hasKey ($object.spec | default dict) "template" -}}
{{- include "fairlead.merge" (list $object (dict "spec" (dict "template" (dict "metadata" (dict "labels" .))))) -}}
{{- end -}}
{{- $_ := set $state "changed" true -}}
{{- end -}}
{{- range $root.Values.patches -}}
{{- if include "fairlead.selects" (list . $object) -}}
{{- if eq (get . "$patch") "delete" -}}
{{- $_ := set $state "deleted" true -}}
{{- else -}}
{{- include "fairlead.merge" (list $object (deepCopy .)) -}}
{{- $_ := set $state "changed" true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Whether a patch is for an object, given (list patch object): "true" or nothing. */ -}}
{{- define "fairlead.selects" -}}
{{- $patch := index . 0 -}}
{{- $object := index . 1 -}}
{{- $version := $patch.apiVersion | default $object.apiVersion -}}
{{- if and (eq $patch.kind $object.kind) (eq $patch.metadata.name $object.metadata.name) (eq $version $object.apiVersion) -}}
true
{{- end -}}
{{- end -}}

{{- /*
Merges a strategic merge patch into a map, in place, given (list map patch). A null removes a field. Lists whose items
Kubernetes identifies by a field are merged item by item. Other lists are replaced.
*/ -}}
{{- define "fairlead.merge" -}}
{{- $into := index . 0 -}}
{{- range $field, $value := index . 1 -}}
{{- $old := get $into $field -}}
{{- if eq $field "$patch" -}}
{{- else if kindIs "invalid" $value -}}
{{- $_ := unset $into $field -}}
{{- else if kindIs "map" $value -}}
{{- if eq (get $value "$patch") "delete" -}}
{{- $_ := unset $into $field -}}
{{- else -}}
{{- if or (not (kindIs "map" $old)) (not (hasKey $into $field)) (eq (get $value "$patch") "replace") -}}
{{- $_ := set $into $field dict -}}
{{- end -}}
{{- include "fairlead.merge" (list (get $into $field) $value) -}}
{{- end -}}
{{- else if and (kindIs "slice" $value) (include "fairlead.mergeKey" (list $field $value)) -}}
{{- $key := include "fairlead.mergeKey" (list $field $value) -}}
{{- $_ := set $into $field (include "fairlead.mergeList" (list $old $value $key) | fromYamlArray) -}}
{{- else -}}
{{- $_ := set $into $field $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The field that identifies the items of a list, given (list field items). It is empty for other lists. */ -}}
{{- define "fairlead.mergeKey" -}}
{{- $items := index . 1 -}}
{{- $names := list "containers" "initContainers" "volumes" "env" "imagePullSecrets" "webhooks" "matchConditions" "variables" -}}
{{- $keys := dict "volumeMounts" (list "mountPath") "volumeDevices" (list "devicePath") "hostAliases" (list "ip") -}}
{{- $_ := set $keys "ports" (list "containerPort" "port") -}}
{{- $_ := set $keys "topologySpreadConstraints" (list "topologyKey") -}}
{{- range $names }}{{- $_ := set $keys . (list "name") -}}{{- end -}}
{{- $found := "" -}}
{{- range $key := get $keys (index . 0) | default list -}}
{{- $all := gt (len $items) 0 -}}
{{- range $items -}}
{{- if not (kindIs "map" .) }}{{- $all = false -}}{{- else if not (hasKey . $key) }}{{- $all = false -}}{{- end -}}
{{- end -}}
{{- if and $all (not $found) }}{{- $found = $key -}}{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- /* Merges the items of two lists, given (list old patch key), and prints the result as YAML. */ -}}
{{- define "fairlead.mergeList" -}}
{{- $old := index . 0 | default list -}}
{{- $patch := index . 1 -}}
{{- $key := index . 2 -}}
{{- $result := list -}}
{{- $seen := dict -}}
{{- range $item := $old -}}
{{- $keep := true -}}
{{- range $patch -}}
{{- if eq (get . $key | toString) (get $item $key | toString) -}}
{{- $_ := set $seen (get . $key | toString) true -}}
{{- if eq (get . "$patch") "delete" -}}
{{- $keep = false -}}
{{- else if eq (get . "$patch") "replace" -}}
{{- $item = omit . "$patch" -}}
{{- else -}}
{{- include "fairlead.merge" (list $item .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $keep }}{{- $result = append $result $item -}}{{- end -}}
{{- end -}}
{{- range $patch -}}
{{- if and (not (hasKey $seen (get . $key | toString))) (ne (get . "$patch") "delete") -}}
{{- $result = append $result (omit . "$patch") -}}
{{- end -}}
{{- end -}}
{{- toYaml $result -}}
{{- end -}}
