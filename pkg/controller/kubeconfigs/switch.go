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
	// switchTime is how long Cluster API's managers take to use a new kubeconfig once the old way is dead: five probes
	// 10 s apart, each with a timeout of 5 s, then an attempt every 30 s. They do not watch the Secret.
	switchTime = 110 * time.Second
	// justMade is how old a kubeconfig is at most that no client can be connected by if its server does not answer.
	justMade = 10 * time.Second
	// oldWayInterval is how often an old way is looked at that works, and oldWayRarely after the first ten minutes.
	oldWayInterval, oldWayRarely = 30 * time.Second, 5 * time.Minute
)

// recordIn puts a decision into a status, and when and from where the kubeconfig came to lead another way. Where it
// leads is not known while the Secret is away or can't be read: then what depends on the Secret stays as it was.
func (v *decision) recordIn(status *v1alpha1.TunnelStatus, o objects.Group, leads kubeconfig.Way, now time.Time) {
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
			previous = kubeconfig.Way{}
		}
		record.PreviousServer, record.PreviousProxyURL = previous.Server, kubeconfig.WithoutCredentials(previous.ProxyURL)
	}
	status.Kubeconfig = record
}

// previous is the way by which managers may be connected when a kubeconfig comes to lead another one. One that leads
// past the gateways stays that until it is over: what changes between two ways through the gateways meanwhile says
// nothing about it.
func (v *decision) previous(before v1alpha1.KubeconfigStatus, o objects.Group) kubeconfig.Way {
	if before.ChangedAt == nil {
		was, _ := kubeconfig.Read(o.Kubeconfig, o.Key.Name)
		return was
	}
	was := kubeconfig.Way{Server: before.PreviousServer, ProxyURL: before.PreviousProxyURL}
	tunnelled := before.Mode.Tunnelled() && v.record.Mode.Tunnelled()
	if before.Server == "" || (was.Server != "" && tunnelled && !throughGateways(v.target.Gateways, was, o)) {
		return was // the first: what is on record was in no Secret
	}
	return kubeconfig.Way{Server: before.Server, ProxyURL: before.ProxyURL}
}

// throughGateways says whether a way leads through the gateways.
func throughGateways(gateways kubeconfig.Gateways, w kubeconfig.Way, o objects.Group) bool {
	host, proxy := kubeconfig.Host(w.Server), kubeconfig.Host(w.ProxyURL)
	return (proxy != "" && proxy == gateways.Connect.Host) ||
		(host != "" && (host == gateways.APIServer.Host || host == o.Tunnel.Status.Hostname))
}

// switched says whether Cluster API's managers use the kubeconfig as it is, and returns when that is to be looked at
// again. Once they do, there is no way before any more.
func (r *Reconciler) switched(v *decision, status *v1alpha1.TunnelStatus, o objects.Group) time.Duration {
	record := &status.Kubeconfig
	was := apimeta.FindStatusCondition(o.Tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigSwitched)
	switch {
	case record.PreviousServer == "":
		if record.ChangedAt != nil {
			r.switchDone(v, record, o)
		}
		r.previous.forget(o.Key)
		return lookAgain()
	case o.Kubeconfig == nil: // it comes again, or the Cluster goes
		if was != nil {
			v.add(*was)
		}
		return lookAgain()
	}
	before := way(record.PreviousServer, record.PreviousProxyURL)
	if why := r.worksForSure(record, o); why != "" {
		r.previous.forget(o.Key)
		v.waiting(v1alpha1.ReasonOldWayWorks, oldWayWorks(before, why))
		return lookAgain()
	}
	return r.askOldWay(v, record, was, o)
}

// askOldWay goes by whether the server of the way before answers.
func (r *Reconciler) askOldWay(
	v *decision, record *v1alpha1.KubeconfigStatus, was *metav1.Condition, o objects.Group,
) time.Duration {
	now, before := r.Now(), way(record.PreviousServer, record.PreviousProxyURL)
	works, known := r.previous.ask(o, record.PreviousServer, expected(record.PreviousServer, o, r.Config.Gateways()))
	began := record.ChangedAt.Time
	waited := was != nil && was.Status == metav1.ConditionFalse
	if waited {
		began = now // a controller before this one has seen what this one has not
	}
	age := record.ChangedAt.Sub(o.Kubeconfig.CreationTimestamp.Time) // negative if the Secret was made again since
	last := r.previous.lastWorking(o.Key, began)
	switch until := last.Add(switchTime); {
	case !known && waited:
		v.add(*was)
		return oldWayInterval // the answer comes before
	case !known:
		v.waiting(
			v1alpha1.ReasonWaitingForManagers,
			fmt.Sprintf("checking whether the previous endpoint, %s, still works", before),
		)
		return oldWayInterval
	case works:
		v.waiting(v1alpha1.ReasonOldWayWorks, oldWayWorks(before, "it answers, or the controller must not dial it"))
		if now.Sub(record.ChangedAt.Time) > 10*time.Minute {
			return oldWayRarely
		}
		return oldWayInterval
	case now.Before(until) && (age < 0 || age >= justMade):
		v.waiting(v1alpha1.ReasonWaitingForManagers, fmt.Sprintf("Cluster API's managers read the kubeconfig only when "+
			"they connect. The previous endpoint, %s, does not answer: "+
			"connections to it end after five failed probes, within 75 s, the next attempt follows within 30 s, and all use "+
			"the kubeconfig as it is by %s", before, until.UTC().Format(time.RFC3339)))
		return min(until.Sub(now)+time.Second, oldWayInterval)
	}
	record.PreviousServer, record.PreviousProxyURL = "", ""
	r.switchDone(v, record, o)
	return lookAgain()
}

// switchDone says that a switch is over, and forgets what was found out for it: it says nothing about another one.
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

// waiting says that managers may be connected by the way before.
func (v *decision) waiting(reason, message string) {
	v.add(metav1.Condition{
		Type: v1alpha1.ConditionKubeconfigSwitched, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
}

func oldWayWorks(before, why string) string {
	return fmt.Sprintf("the previous endpoint, %s, still works: %s. Cluster API's managers that are connected to it stay connected "+
		"while it works, and reach the "+
		"same apiserver; they use the current kubeconfig when they connect again. To hasten that, restart them", before,
		why)
}

// worksForSure says why an old way works that need not be looked at, or can't be; empty: look.
func (r *Reconciler) worksForSure(record *v1alpha1.KubeconfigStatus, o objects.Group) string {
	gateways, before := r.Config.Gateways(), kubeconfig.Way{
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

// address is host:port of a server; empty if it is none.
func address(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), portOf(u))
}

// way is a way that may be shown.
func way(server, proxyURL string) string {
	return kubeconfig.Way{Server: server, ProxyURL: proxyURL}.String()
}
