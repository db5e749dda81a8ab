{{- /* The image of a program, given (list root name). */ -}}
{{- define "fairlead.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $image := $root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
fairlead-{{ $name -}}
{{- with index $image.digests $name }}@{{ . }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* Settings with the defaults that depend on other values. */ -}}
{{- define "fairlead.publicAddress" -}}
{{ .Values.publicAddress | default (printf "gateway.%s:443" .Values.tunnelDomain) }}
{{- end -}}

{{- define "fairlead.edgeImage" -}}
{{ .Values.edgeImage | default (include "fairlead.image" (list . "edge")) }}
{{- end -}}

{{- define "fairlead.apiserverAddress" -}}
{{ .Values.apiserverAddress | default (printf "gateway.%s.svc:6443" .Release.Namespace) }}
{{- end -}}

{{- define "fairlead.connectAddress" -}}
{{ .Values.connectAddress | default (printf "gateway.%s.svc:3128" .Release.Namespace) }}
{{- end -}}

{{- /* What the controller makes the Service for edges of. */ -}}
{{- define "fairlead.publicService" -}}
{{- $metadata := dict -}}
{{- with .Values.commonLabels }}{{- $_ := set $metadata "labels" . -}}{{- end -}}
{{- $service := .Values.publicService -}}
{{- with $service.annotations }}{{- $_ := set $metadata "annotations" . -}}{{- end -}}
{{- $spec := dict "type" $service.type -}}
{{- if ne $service.type "ClusterIP" }}{{- $_ := set $spec "externalTrafficPolicy" $service.trafficPolicy -}}{{- end -}}
{{- if eq $service.type "LoadBalancer" -}}
{{- with $service.loadBalancerClass }}{{- $_ := set $spec "loadBalancerClass" . -}}{{- end -}}
{{- with $service.sourceRanges }}{{- $_ := set $spec "loadBalancerSourceRanges" . -}}{{- end -}}
{{- end -}}
{{- with .Values.ipFamilyPolicy }}{{- $_ := set $spec "ipFamilyPolicy" . -}}{{- end -}}
{{- $all := dict "spec" $spec -}}
{{- if $metadata }}{{- $_ := set $all "metadata" $metadata -}}{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{- /*
The hash of the settings that a program reads when it starts, given (list root name). It is an annotation of the Pods,
so a change restarts exactly the programs that it concerns.
*/ -}}
{{- define "fairlead.settingsHash" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := $root.Values -}}
{{- $settings := list $values.tunnelDomain -}}
{{- if eq $name "controller" -}}
{{- $settings = concat $settings (list (include "fairlead.publicAddress" $root) (include "fairlead.apiserverAddress" $root)) -}}
{{- $settings = concat $settings (list (include "fairlead.connectAddress" $root) $values.rollout) -}}
{{- $settings = concat $settings (list (include "fairlead.publicService" $root) (include "fairlead.edgeImage" $root)) -}}
{{- else if eq $name "xds-server" -}}
{{- $settings = concat $settings (list (include "fairlead.publicAddress" $root) $values.replicaAddress) -}}
{{- end -}}
{{- if eq $name "runtime-extension" -}}
{{- $settings = append $settings (include "fairlead.edgeImage" $root) -}}
{{- else if ne $name "controller" -}}
{{- $settings = append $settings ($values.gateway.workers | toString) -}}
{{- end -}}
{{- if ne $name "runtime-extension" -}}
{{- $settings = append $settings (include "fairlead.perTunnel" $root) -}}
{{- end -}}
{{- join "\n" $settings | sha256sum | trunc 16 -}}
{{- end -}}

{{- /* The fields of a Pod's spec that values set in the same way for each program, given (list root name values). */ -}}
{{- define "fairlead.podSpec" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := index . 2 -}}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.topologySpread }}
# The loss of a node or a zone affects as few Pods as possible.
topologySpreadConstraints:
{{- range . }}
  - {{ mergeOverwrite (dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" $name))) . | toYaml | nindent 4 | trim }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* To how many gateways edges keep reverse tunnels: gateways behind PROXY protocol cannot forward to each other. */ -}}
{{- define "fairlead.perTunnel" -}}
{{- if kindIs "invalid" .Values.gateway.perTunnel -}}
{{- ternary 0 3 (not (empty .Values.gateway.proxyProtocolFrom)) -}}
{{- else -}}
{{- .Values.gateway.perTunnel -}}
{{- end -}}
{{- end -}}

{{- /* The PodDisruptionBudget of a program, given (list root name). */ -}}
{{- define "fairlead.disruptionBudget" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- with $root.Values.disruptionBudget }}
---
# Draining nodes removes one ready Pod at a time. Pods that are not ready hold up no drain.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
spec:
  {{- toYaml . | nindent 2 }}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ $name }}}
{{- end }}
{{- end -}}

{{- /*
The memory at which Envoy stops accepting connections: three quarters of the memory limit of the gateway. The result
is empty without a limit.
*/ -}}
{{- define "fairlead.envoyMemory" -}}
{{- $limit := dig "limits" "memory" "" .Values.gateway.resources -}}
{{- $limit = kindIs "float64" $limit | ternary (printf "%.0f" $limit) ($limit | toString) -}}
{{- if $limit -}}
{{- $units := dict "" 1 "k" 1000 "Ki" 1024 "M" 1000000 "Mi" 1048576 "G" 1000000000 "Gi" 1073741824 -}}
{{- $number := regexFind "^[0-9]+" $limit -}}
{{- $unit := trimPrefix $number $limit -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "gateway.resources.limits.memory: %q: use a whole number with Mi or Gi, such as 2Gi" $limit) -}}
{{- end -}}
{{- printf "%dMi" (div (mul (int64 $number) (index $units $unit) 3) (mul 4 1048576)) -}}
{{- end -}}
{{- end -}}
