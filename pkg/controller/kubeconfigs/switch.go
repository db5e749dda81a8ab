package kubeconfigs

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

const (
	// switchTime is how long Cluster API's managers take to use a new kubeconfig after the previous endpoint stops
	// working: five probes 10 s apart with a timeout of 5 s each, then an attempt every 30 s. They do not watch the
	// Secret.
	switchTime = 110 * time.Second
	// justMade is the greatest age of a kubeconfig at which no client can be connected through it if its server does not
	// answer.
	justMade = 10 * time.Second
	// previousInterval is how often a working previous endpoint is probed in the first ten minutes, and previousRarely
	// after that.
	previousInterval, previousRarely = 30 * time.Second, 5 * time.Minute
)

// recordIn writes a decision to a status, with the time and the previous endpoint when the endpoint changes. While the
// Secret is missing or cannot be read, the endpoint is unknown, and the fields that depend on the Secret stay.
func (v *decision) recordIn(status *v1alpha1.TunnelStatus, o objects.Group, leads kubeconfig.Endpoint, now time.Time) {
	before, record := status.Kubeconfig, v.record
	record.Copies = before.Copies
	known := o.Kubeconfig != nil && leads.Server != ""
	switch {
	case !v.leads:
		status.Kubeconfig = record
		return
	case known:
		record.Server, record.TLSServerName = leads.Server, leads.TLSServerName
		record.ProxyURL = kubeconfig.WithoutCredentials(leads.ProxyURL)
	case record.Mode == before.Mode && record.ProxyURL != "": // some is the provider's
		record.Server, record.TLSServerName = cmp.Or(
			record.Server, before.Server,
		), cmp.Or(record.TLSServerName, before.TLSServerName)
	}
	record.ChangedAt = before.ChangedAt
	record.PreviousServer, record.PreviousProxyURL = before.PreviousServer, before.PreviousProxyURL
	same := before.Server == record.Server && before.TLSServerName == record.TLSServerName &&
		before.ProxyURL == record.ProxyURL
	if (before.ChangedAt == nil && known) || (before.ChangedAt != nil && !same) {
		at := metav1.NewTime(now.Truncate(time.Second))
		record.ChangedAt = &at
		previous := v.previous(before, o)
		if unused(o) || previous == leads {
			previous = kubeconfig.Endpoint{}
		}
		record.PreviousServer, record.PreviousProxyURL = previous.Server, kubeconfig.WithoutCredentials(previous.ProxyURL)
	}
	status.Kubeconfig = record
}

// previous returns the endpoint through which managers may be connected when a kubeconfig gets another one. A previous
// endpoint that bypasses the gateways is kept until the switch is over: later changes between two endpoints at the
// gateways do not replace it.
func (v *decision) previous(before v1alpha1.KubeconfigStatus, o objects.Group) kubeconfig.Endpoint {
	if before.ChangedAt == nil {
		was, _ := kubeconfig.Read(o.Kubeconfig, o.Key.Name)
		return was
	}
	was := kubeconfig.Endpoint{Server: before.PreviousServer, ProxyURL: before.PreviousProxyURL}
	tunnelled := before.Mode.Tunnelled() && v.record.Mode.Tunnelled()
	if before.Server == "" || (was.Server != "" && tunnelled && !throughGateways(v.target.Gateways, was, o)) {
		return was // the first: what is on record was in no Secret
	}
	return kubeconfig.Endpoint{Server: before.Server, ProxyURL: before.ProxyURL}
}

// throughGateways reports whether an endpoint is at the gateways.
func throughGateways(gateways kubeconfig.Gateways, e kubeconfig.Endpoint, o objects.Group) bool {
	host, proxy := kubeconfig.Host(e.Server), kubeconfig.Host(e.ProxyURL)
	return (proxy != "" && proxy == gateways.Connect.Host) ||
		(host != "" && (host == gateways.APIServer.Host || host == o.Tunnel.Status.Hostname))
}

// switched decides whether Cluster API's managers use the current kubeconfig, and returns when to check that again.
// Once they do, the previous endpoint is removed.
func (r *Reconciler) switched(v *decision, status *v1alpha1.TunnelStatus, o objects.Group) time.Duration {
	record := &status.Kubeconfig
	was := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigSwitched)
	switch {
	case record.PreviousServer == "":
		if record.ChangedAt != nil {
			r.switchDone(v, record, o)
		}
		r.previous.forget(o.Key)
		return requeueAfter()
	case o.Kubeconfig == nil: // it is created again, or the Cluster is deleted
		if was != nil {
			v.add(*was)
		}
		return requeueAfter()
	}
	before := way(record.PreviousServer, record.PreviousProxyURL)
	if why := r.assumedWorking(record, o); why != "" {
		r.previous.forget(o.Key)
		v.waiting(v1alpha1.ReasonOldWayWorks, previousWorks(before, why))
		return requeueAfter()
	}
	return r.followPrevious(v, record, was, o)
}

// followPrevious decides by whether the server of the previous endpoint answers.
func (r *Reconciler) followPrevious(
	v *decision, record *v1alpha1.KubeconfigStatus, was *metav1.Condition, o objects.Group,
) time.Duration {
	now, before := r.Now(), way(record.PreviousServer, record.PreviousProxyURL)
	works, known := r.previous.ask(o, record.PreviousServer, expected(record.PreviousServer, o, r.Config.Gateways()))
	began := record.ChangedAt.Time
	waited := was != nil && was.Status == metav1.ConditionFalse
	if waited {
		began = now // a controller before this one may have observed what this one has not
	}
	age := record.ChangedAt.Sub(o.Kubeconfig.CreationTimestamp.Time) // negative if the Secret was created again since
	last := r.previous.lastWorking(o.Key, began)
	switch until := last.Add(switchTime); {
	case !known && waited:
		v.add(*was)
		return previousInterval // the result of the probe comes sooner
	case !known:
		v.waiting(
			v1alpha1.ReasonWaitingForManagers, fmt.Sprintf("checking whether the previous endpoint, %s, still works", before),
		)
		return previousInterval
	case works:
		v.waiting(v1alpha1.ReasonOldWayWorks, previousWorks(before, "it answers, or the controller must not dial it"))
		if now.Sub(record.ChangedAt.Time) > 10*time.Minute {
			return previousRarely
		}
		return previousInterval
	case now.Before(until) && (age < 0 || age >= justMade):
		v.waiting(v1alpha1.ReasonWaitingForManagers, fmt.Sprintf("Cluster API's managers read the kubeconfig only when "+
			"they connect. The previous endpoint, %s, does not answer: "+
			"connections to it end after five failed probes, within 75 s, the next attempt follows within 30 s, and all use "+
			"the kubeconfig as it is by %s", before, until.UTC().Format(time.RFC3339)))
		return min(until.Sub(now)+time.Second, previousInterval)
	}
	record.PreviousServer, record.PreviousProxyURL = "", ""
	r.switchDone(v, record, o)
	return requeueAfter()
}

// switchDone records that a switch is over and removes its probe state, which does not apply to another switch.
func (r *Reconciler) switchDone(v *decision, record *v1alpha1.KubeconfigStatus, o objects.Group) {
	r.previous.forget(o.Key)
	done := metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigSwitched, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonSwitched,
	}
	done.Message = "no connection of Cluster API's managers to a previous endpoint is left"
	if record.Mode.Tunnelled() {
		done.Message = "no connection of Cluster API's managers is left that does not lead through the gateways"
	}
	v.add(done)
}

// waiting records that managers may be connected through the previous endpoint.
func (v *decision) waiting(reason, message string) {
	v.add(metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigSwitched, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
}

func previousWorks(before, why string) string {
	return fmt.Sprintf(
		"the previous endpoint, %s, still works: %s. Cluster API's managers that are connected to it stay connected "+
			"while it works, and reach the "+
			"same apiserver; they use the current kubeconfig when they connect again. To hasten that, restart them",
		before,
		why,
	)
}

// assumedWorking returns why a previous endpoint counts as working without a probe; empty: it must be probed.
func (r *Reconciler) assumedWorking(record *v1alpha1.KubeconfigStatus, o objects.Group) string {
	gateways, before := r.Config.Gateways(), kubeconfig.Endpoint{
		Server: record.PreviousServer, ProxyURL: record.PreviousProxyURL,
	}
	proxy := kubeconfig.Host(before.ProxyURL)
	switch {
	case !r.Config.NoTunnels && record.Mode.Tunnelled() && throughGateways(gateways, before, o):
		return "it leads through the same gateways"
	case proxy != "" && proxy != gateways.Connect.Host:
		return "it leads through a proxy, which the controller does not dial"
	case !expected(before.Server, o, gateways) && !r.rule.may(address(before.Server)):
		return "it is not the endpoint of the Cluster, and --dial-networks of the controller does not contain it, so the " +
			"controller does not dial it"
	}
	return ""
}

// address returns host:port of a server; empty: it has none.
func address(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), portOf(u))
}

// way returns an endpoint in a form that may be shown.
func way(server, proxyURL string) string {
	return kubeconfig.Endpoint{Server: server, ProxyURL: proxyURL}.String()
}
