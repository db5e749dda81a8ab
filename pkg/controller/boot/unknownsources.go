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
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
)

const (
	// unknownSourceTime is how long a report may match no Machine before an event is recorded. Addresses appear late.
	unknownSourceTime = 2 * time.Minute
	// unknownSourcesInterval is the least time between two events for unmatched reports of one Cluster: the holder of its
	// token can invent any number of machines.
	unknownSourcesInterval = 10 * time.Minute
	// maxUnknownSources bounds the unmatched reports that are stored for one Cluster.
	maxUnknownSources = 1000
)

// unknownSource is a reporting machine that matches no Machine.
type unknownSource struct {
	bootID   string
	since    time.Time
	reported bool
}

// reportUnknownSources records one event for all reports that match no Machine, and counts each boot once. It returns
// the wait until the next event is due.
func (r *Reconciler) reportUnknownSources(
	cluster *clusterv1.Cluster, left []unmatched, now time.Time,
) (next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.recall(client.ObjectKeyFromObject(cluster))
	quiet := reconciler.Remaining(m.lastUnknownEvent, unknownSourcesInterval, now) // until the next event
	before := m.unknownSources
	m.unknownSources = map[string]unknownSource{}
	var news []unmatched
	for _, u := range left[:min(len(left), maxUnknownSources)] {
		id := u.boot.Report.GetBootId()
		s, ok := before[u.boot.Host]
		if !ok || s.bootID != id {
			s = unknownSource{bootID: id, since: now}
		}
		if wait := max(reconciler.Remaining(s.since, unknownSourceTime, now), quiet); s.reported {
			// already reported, or not due yet
		} else if wait > 0 {
			next = sooner(next, wait)
		} else {
			s.reported = true
			news = append(news, u)
		}
		m.unknownSources[u.boot.Host] = s
	}
	if len(news) > 0 {
		m.lastUnknownEvent = now
		r.Recorder.Eventf(
			cluster, nil, corev1.EventTypeWarning, v1alpha1.EventBootReportUnmatched, "Boot", "%s",
			condition.Shorten(unknownSourcesMessage(news)),
		)
	}
	return next
}

func unknownSourcesMessage(news []unmatched) string {
	first := unknownSourceMessage(news[0])
	if len(news) == 1 {
		return first
	}
	return fmt.Sprintf(
		"%d machines report how they boot, and match no Machine, such as: %s", len(news), first,
	)
}

func unknownSourceMessage(u unmatched) string {
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
