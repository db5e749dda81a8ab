package boot

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/condition"
)

const (
	// strangerTime is how long a report may be without a Machine before an event is recorded: addresses come late.
	strangerTime = 2 * time.Minute
	// strangersInterval is how often an event for unmatched reports of one Cluster is recorded: a holder of its token
	// can invent as many as he likes.
	strangersInterval = 10 * time.Minute
	// maxStrangers bounds what is remembered of those of one Cluster.
	maxStrangers = 1000
)

// stranger is a reporting machine that matches no Machine.
type stranger struct {
	bootID string
	since  time.Time
	told   bool
}

// strangers tells of reports that are of no Machine: once for each boot, and of all together. It returns when there
// is something to tell.
func (r *Reconciler) strangers(cluster *clusterv1.Cluster, left []unmatched, now time.Time) (next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(client.ObjectKeyFromObject(cluster))
	quiet := m.told.Add(strangersInterval).Sub(now) // until the next event
	before := m.strangers
	m.strangers = map[string]stranger{}
	var news []unmatched
	for _, u := range left[:min(len(left), maxStrangers)] {
		id := u.boot.Report.GetBootId()
		s, ok := before[u.boot.Host]
		if !ok || s.bootID != id {
			s = stranger{bootID: id, since: now}
		}
		if wait := max(s.since.Add(strangerTime).Sub(now), quiet); s.told {
			// nothing is new of it
		} else if wait > 0 {
			next = sooner(next, wait)
		} else {
			s.told = true
			news = append(news, u)
		}
		m.strangers[u.boot.Host] = s
	}
	if len(news) > 0 {
		m.told = now
		r.Recorder.Eventf(
			cluster, nil, corev1.EventTypeWarning, v1alpha1.EventBootReportUnmatched, "Boot", "%s",
			condition.Shorten(strangersMessage(news)),
		)
	}
	return next
}

func strangersMessage(news []unmatched) string {
	first := strangerMessage(news[0])
	if len(news) == 1 {
		return first
	}
	return fmt.Sprintf(
		"%d machines report how they boot, and match no Machine, such as: %s", len(news), first,
	)
}

func strangerMessage(u unmatched) string {
	m := u.boot.Report.GetMachine()
	who := fmt.Sprintf("a machine with the hostname %s and the addresses %s reports how it boots (%s), ",
		m.GetHostname(), strings.Join(m.GetAddresses(), ", "),
		strings.ToLower(strings.TrimPrefix(u.boot.Report.GetState().String(), "BOOT_STATE_")))
	if u.candidates > 1 {
		return who + fmt.Sprintf(
			"and may be any of %d Machines: start edge-agent report with --machine or --provider-id", u.candidates,
		)
	}
	return who + "and matches no Machine of this Cluster by name, address, provider id or system UUID: start edge-agent " +
		"report with --machine or --provider-id"
}
