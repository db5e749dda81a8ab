{{- /* Fails with one line if the values or the cluster cannot work. It prints nothing. */ -}}
{{- define "fairlead.checks" -}}
{{- if not .Values.tunnelDomain -}}
{{- fail "tunnelDomain is not set: add --set tunnelDomain=tunnels.example.com, with a subdomain of a zone that you own; it cannot be changed later" -}}
{{- end -}}
{{- if and (not .Values.gateway.netAdmin) (gt (int .Values.gateway.workers) 1) -}}
{{- fail "gateway.netAdmin=false needs gateway.workers=1, because tunnels are spread over workers by closing some: set more gateway.replicas instead" -}}
{{- end -}}
{{- if and .Values.gateway.proxyProtocolFrom .Values.gateway.perTunnel -}}
{{- fail "gateway.proxyProtocolFrom needs gateway.perTunnel=0, because gateways that require PROXY headers do not forward clients to each other: remove one of the two" -}}
{{- end -}}
{{- if and .Values.gateway.proxyProtocolFrom (ne .Values.publicService.trafficPolicy "Local") -}}
{{- fail "gateway.proxyProtocolFrom needs publicService.trafficPolicy=Local, because otherwise nodes replace the addresses of outsiders, who could then name any address" -}}
{{- end -}}
{{- include "fairlead.checkAPI" (list . "cluster.x-k8s.io/v1beta2" "Fairlead needs Cluster API 1.12 or newer" "install it first (clusterctl init)") -}}
{{- if and .Values.metrics.enabled .Values.metrics.operator -}}
{{- include "fairlead.checkAPI" (list . "monitoring.coreos.com/v1" "metrics.operator needs the Prometheus Operator" "install it first, or set metrics.operator=false") -}}
{{- end -}}
{{- if .Values.webhook.certManager -}}
{{- include "fairlead.checkAPI" (list . "cert-manager.io/v1" "webhook.certManager needs cert-manager" "install it first, or set webhook.certManager=false") -}}
{{- end -}}
{{- if .Values.runtimeExtension.enabled -}}
{{- include "fairlead.checkAPI" (list . "cert-manager.io/v1" "runtimeExtension.enabled needs cert-manager" "install it first (clusterctl init does)") -}}
{{- include "fairlead.checkAPI" (list . "runtime.cluster.x-k8s.io/v1beta2" "runtimeExtension.enabled needs Cluster API's runtime SDK" "install Cluster API with EXP_RUNTIME_SDK=true") -}}
{{- end -}}
{{- if and .Values.page.host .Values.page.parentRefs (eq .Values.page.serve "service") -}}
{{- include "fairlead.checkAPI" (list . "gateway.networking.k8s.io/v1/BackendTLSPolicy" "page.parentRefs needs Gateway API 1.4 or newer" "install its types first, or use an Ingress") -}}
{{- end -}}
{{- include "fairlead.checkPatches" . -}}
{{- include "fairlead.checkDrain" . -}}
{{- include "fairlead.checkPerTunnel" . -}}
{{- end -}}

{{- /* Fails if the cluster does not serve a group and version, or a kind of it, given (list root it what fix). */ -}}
{{- define "fairlead.checkAPI" -}}
{{- $root := index . 0 -}}
{{- $version := index . 1 -}}
{{- if and $root.Values.checkAPIs (not ($root.Capabilities.APIVersions.Has $version)) -}}
{{- fail (printf "%s, and this cluster does not serve %s: %s; for helm template use --api-versions %s or --set checkAPIs=false" (index . 2) $version (index . 3) $version) -}}
{{- end -}}
{{- end -}}

{{- /* Fails if a patch selects no object. */ -}}
{{- define "fairlead.checkPatches" -}}
{{- if .Values.patches -}}
{{- $root := . -}}
{{- $objects := list -}}
{{- range include "fairlead.templates" . | fromJsonArray -}}
{{- range splitList "\n---" (printf "\n%s" (include (printf "fairlead.%s" .) $root)) -}}
{{- with fromYaml . }}{{- $objects = append $objects . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $i, $patch := .Values.patches -}}
{{- $found := false -}}
{{- range $objects -}}
{{- if include "fairlead.selects" (list $patch .) }}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if not $found -}}
{{- fail (printf "patches[%d] selects no object: the chart has no %s with the name %s; helm template shows the objects" $i $patch.kind $patch.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Fails if kubelets would kill gateways that drain. Envoy and its agent take up to 10 s to end after that. */ -}}
{{- define "fairlead.checkDrain" -}}
{{- $root := . -}}
{{- range splitList "\n---" (printf "\n%s" (include "fairlead.gateway" .)) -}}
{{- $object := fromYaml . -}}
{{- if eq $object.kind "StatefulSet" -}}
{{- include "fairlead.change" (list $root $object dict) -}}
{{- $pod := $object.spec.template.spec -}}
{{- $drain := "" -}}
{{- range $pod.containers -}}
{{- range .args -}}
{{- if hasPrefix "--drain-timeout=" . }}{{- $drain = trimPrefix "--drain-timeout=" . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- $need := sub ($start | dateModify $drain | unixEpoch | int64) (unixEpoch $start | int64) | add 10 -}}
{{- $have := $pod.terminationGracePeriodSeconds | default 30 | int64 -}}
{{- if lt $have $need -}}
{{- fail (printf "gateways drain for --drain-timeout=%s, and their Pods are killed after %d s: add a patch of StatefulSet gateway with spec.template.spec.terminationGracePeriodSeconds: %d" $drain $have $need) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
Fails if gateways would stop forwarding, or begin to, while edges do not have tunnels to all of them: the controller
stops such a rollout, but the gateways restart. The present number is in the cluster. Without access to it, an upgrade
that sets no number is taken for the first one with proxyProtocolFrom. The rollout and the restart of the gateways
are two things, and either may end first: a gateway forwards by the number with which it has started.
*/ -}}
{{- define "fairlead.checkPerTunnel" -}}
{{- $next := include "fairlead.perTunnel" . | int -}}
{{- $now := $next -}}
{{- with lookup "v1" "ConfigMap" .Release.Namespace "fairlead-settings" -}}
{{- $now = dig "data" "GATEWAYS_PER_TUNNEL" "0" . | int -}}
{{- else -}}
{{- if and .Release.IsUpgrade (kindIs "invalid" .Values.gateway.perTunnel) }}{{- $now = 3 -}}{{- end -}}
{{- end -}}
{{- $gateways := .Values.gateway.replicas | default 100 | int -}}
{{- if and (ne (eq $now 0) (eq $next 0)) (lt (max $now $next | int) $gateways) (ne .Values.rollout "immediate") -}}
{{- $all := printf "set gateway.perTunnel=100 and no other value, wait until kubectl -n %s rollout status statefulset/gateway has ended and fairlead config sync shows that it is rolled out" .Release.Namespace -}}
{{- $steps := printf "%s, set gateway.perTunnel=0 in the same way, and change gateway.proxyProtocolFrom only then; if 0 is the present number already, set gateway.perTunnel=0" $all -}}
{{- if ne $next 0 -}}
{{- $steps = printf "if you remove gateway.proxyProtocolFrom, first do that with gateway.perTunnel=0, and wait until the gateways have restarted; then %s, and set gateway.perTunnel=%d in the same way" $all $next -}}
{{- end -}}
{{- fail (printf "gateway.perTunnel would change from %d to %d, and with more gateways clients would find no tunnel at some of them: %s" $now $next $steps) -}}
{{- end -}}
{{- end -}}
