// Package explain says what problems and reasons that edges report, reasons of conditions, and errors of the management
// cluster mean. Its input is one of these; its output is the likely cause, and the cure. It does not know what else was
// observed.
package explain

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
)

// Edge returns the likely cause and the cure of a problem that an edge reports.
func Edge(problem string) (cause, cure string) {
	about, _, _ := strings.Cut(problem, ":")
	log := "; see its log on that machine"
	switch model.Trouble(about) {
	case model.TroubleCertificate:
		return "the edge cannot obtain or renew its certificate", "correct the reported error" + log
	case model.TroubleConfiguration:
		return "the edge's Envoy, or its edge-agent, rejects the configuration from the xds-server: their versions " +
				"differ, or one has a fault",
			"run edge-agent and xds-server of the same version" + log
	case model.TroubleChannel:
		return "the edge has started without reaching the control channel",
			"check that it reaches the gateways' public port" + log
	case model.TroubleHang:
		return "the edge's Envoy is frozen, deadlocked or starved of CPU",
			"wait: edge-agent replaces a frozen Envoy after 15 s, at most once in five minutes; if it remains frozen, restart " +
				"Envoy on that machine (systemctl restart edge-envoy)" + log
	case model.TroubleReplaced:
		return "the edge's Envoy was frozen, deadlocked or starved of CPU, and edge-agent has replaced it",
			"nothing, unless it happens again: edge-agent replaces a frozen Envoy after 15 s, at most once in five minutes; " +
				"then check that the machine has enough CPU and memory" + log
	case model.TroubleEnvoy:
		return "the edge's Envoy ended unexpectedly, and edge-agent restarts it",
			"nothing, unless it happens again: the edge reports it until Envoy has run for a minute; then see its log on that " +
				"machine"
	case model.TroubleStart:
		return "the edge's Envoy cannot be started", "correct the reported error" + log
	case model.TroubleDisk:
		return "the edge cannot write its state folder", "free disk space, or correct the permissions" + log
	}
	return "the edge reports this error", "correct the reported error" + log
}

// APIServer returns why an edge does not reach the apiserver of a Tunnel, and the cure, from the reason that the edge
// reports (pkg/probe).
func APIServer(reason model.APIServerReason, tunnel string) (cause, cure string) {
	address := "or correct the address: spec.apiServer of Tunnel " + tunnel + " is the address that edges dial from " +
		"their network"
	onItsMachine := "check the apiserver on the control-plane machine, " + address
	switch reason {
	case model.APIServerConnectionRefused:
		return "the apiserver is down, or listens at another address",
			"start the apiserver on the control-plane machine (crictl ps -a, its log), " + address
	case model.APIServerCertificateNotValid:
		return "the apiserver's serving certificate is not valid now: it has expired, or the clock of the edge is wrong",
			"renew it on the control-plane machine: kubeadm certs renew apiserver, and restart the apiserver; or correct the " +
				"clock"
	case model.APIServerNotReady:
		return "the apiserver runs but is not ready: the named check fails, or it waits for etcd",
			"see the log of the apiserver and of etcd on the control-plane machine"
	case model.APIServerNameNotResolved:
		return "the DNS of the edge's network does not resolve the apiserver's name", "correct DNS there, " + address
	case model.APIServerNoRoute:
		return "the edge's machine has no route to the apiserver", "check the network of that machine, " + address
	case model.APIServerNotAPIServer:
		return "the address is not that of an apiserver", address
	case model.APIServerConnectionTimeout:
		return "the apiserver does not answer: its machine is down or hangs, or a firewall drops packets to it", onItsMachine
	case model.APIServerNoAnswer:
		return "the apiserver does not answer, although its machine accepts connections: it hangs", onItsMachine
	}
	return "the edge does not reach the apiserver", onItsMachine
}

// Tunnel returns why a Tunnel is not accepted, and the cure, from the reason of its condition.
func Tunnel(reason string) (cause, cure string) {
	switch reason {
	case v1alpha1.ReasonNameTaken:
		return "two Clusters claim one hostname or id, and the other one holds it",
			"rename or delete one of the two Clusters; the remaining one is served a few seconds later"
	case v1alpha1.ReasonInvalidExtraName:
		return "an extra name is invalid, or another Tunnel has it; everything else is served",
			"remove the name from spec.extraNames of this Tunnel, or of the one that has it: kubectl edit tunnel"
	case v1alpha1.ReasonInvalidName:
		return "the names of the Cluster and its namespace do not form a valid DNS name",
			"create the Cluster again under another name"
	case v1alpha1.ReasonInvalidAPIServer:
		return "the address that edges dial must be an IP address or a DNS name",
			"correct it in spec.apiServer of the Tunnel, or in spec.controlPlaneEndpoint of the Cluster"
	case v1alpha1.ReasonControlledByOther:
		return "the Tunnel is controlled by an object other than its Cluster", "remove that owner reference, or the Tunnel"
	case v1alpha1.ReasonTunnelsOff:
		return "this installation has no tunnels",
			"choose another mode in spec.kubeconfig.mode, or run the controller with gateways"
	}
	return "the controller rejects it", "correct what the message names"
}

// Unreadable returns why a required object cannot be read from the management cluster, and the cure. late reports that
// the time for the request has ended.
func Unreadable(err error, late bool, resource, namespace string) (cause, cure string) {
	works := "check that kubectl get " + resource + " works here"
	switch {
	case apierrors.IsNotFound(err):
		return "the name, the namespace or the management cluster is wrong",
			"kubectl get " + resource + " -A lists all; choose another with --namespace, --context or --kubeconfig"
	case apierrors.IsForbidden(err):
		return "the user of this command may not read " + resource + " in namespace " + namespace,
			"allow this user to get, list and watch " + resource + " and tunnels.fairlead.dev there, for example by kubectl " +
				"create role and rolebinding, or use another --context"
	case apierrors.IsUnauthorized(err):
		return "the credentials in the kubeconfig of the management cluster have expired",
			"log in to the management cluster again"
	case apimeta.IsNoMatchError(err):
		return "Cluster API or Fairlead is not installed there, or the management cluster is wrong",
			"install it, or use another --context"
	case late:
		return "its apiserver is down or slow, or this machine has no route to it", works
	}
	return "its apiserver is down, or this machine has no route to it", works
}
