package boot

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/redact"
	"github.com/fairlead/fairlead/pkg/controller/config"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	machineCondition = v1alpha1.MachineConditionBootstrapReported
	// maxBootMessage bounds the message of the condition. It holds enough of a log to show the failure, and is far below
	// the limit of the apiserver.
	maxBootMessage = 2 << 10
	// muteTime is ten intervals at which a machine repeats that it is still booting.
	muteTime = 5 * time.Minute
	// muteInterval is the wait before a machine is checked again while the reports may be incomplete.
	muteInterval = 30 * time.Second
	// defaultBootReportAfter exceeds the time that most machines need from their infrastructure to their first report.
	defaultBootReportAfter = 10 * time.Minute
)

// reportAfter returns BootReportAfter, or the default if it is zero.
func reportAfter(c config.Config) time.Duration {
	return cmp.Or(c.BootReportAfter, defaultBootReportAfter)
}

// bootCircumstances holds what a decision about a Machine depends on besides the Machine itself.
type bootCircumstances struct {
	now      time.Time
	expected bool          // all machines of the Cluster are expected to report
	known    bool          // the reports are complete, so an absent one is meaningful
	after    time.Duration // the time allowed until the first report
}

// bootCondition returns the condition that a Machine must have, or nil to keep the current one. again is the wait after
// which time alone may change it; 0 means never.
func bootCondition(
	m *clusterv1.Machine, boot *report.Boot, c bootCircumstances,
) (want *metav1.Condition, again time.Duration) {
	if boot != nil {
		return reported(*boot, c.now)
	}
	have := apimeta.FindStatusCondition(m.Status.Conditions, machineCondition)
	if have != nil && have.Reason != v1alpha1.ReasonWaitingForReport && have.Reason != v1alpha1.ReasonNeverReported {
		return nil, 0 // keep the condition of the last report
	}
	if !c.expected || !m.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	return unreported(m, have, c)
}

// reported returns the condition of a Machine that has reported.
func reported(b report.Boot, now time.Time) (*metav1.Condition, time.Duration) {
	r := b.Report
	c := &metav1.Condition{
		Type:   machineCondition,
		Status: metav1.ConditionUnknown,
		Reason: v1alpha1.ReasonBootstrapInProgress,
	}
	said := strings.TrimSuffix(r.GetStep()+": "+r.GetMessage(), ": ")
	switch r.GetState() {
	case reportv1.BootState_BOOT_STATE_SUCCEEDED:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonBootstrapSucceeded, said
	case reportv1.BootState_BOOT_STATE_FAILED:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonBootstrapFailed, said
		if tail := strings.TrimSpace(redact.Text(r.GetTail())); tail != "" {
			c.Message = redact.Text(c.Message)
			c.Message += "\n" + report.CleanTail(tail, max(0, maxBootMessage-len(c.Message)-1))
		}
	default:
		c.Message = said
		silent := b.Received.Add(muteTime).Sub(now)
		if silent > 0 {
			return finish(c), silent + time.Second
		}
		c.Message += "; no report from the machine since " + b.Received.UTC().Format("2006-01-02 15:04 UTC")
	}
	return finish(c), 0
}

// finish converts the error text of a machine into a message that is safe to show.
func finish(c *metav1.Condition) *metav1.Condition {
	if c.Message = redact.Text(c.Message); len(c.Message) > maxBootMessage {
		c.Message = c.Message[:maxBootMessage]
	}
	c.Message = strings.ToValidUTF8(c.Message, "")
	return c
}

// unreported returns the condition of a Machine that is expected to report and has not.
func unreported(m *clusterv1.Machine, have *metav1.Condition, c bootCircumstances) (*metav1.Condition, time.Duration) {
	node := m.Status.NodeRef.Name
	if node != "" {
		if have == nil || !c.known {
			return nil, 0 // usually a Machine that is older than boot reports
		}
		return &metav1.Condition{
			Type: machineCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNeverReported,
			Message: fmt.Sprintf(
				"the machine has booted as the Node %s, but has not reported: its bootstrap config does not run edge-agent "+
					"report, or its image does not contain edge-agent",
				node,
			),
		}, 0
	}
	since, provisioned := provisionedSince(m)
	if !provisioned {
		return nil, 0
	}
	left := since.Add(c.after).Sub(c.now)
	if left <= 0 && !c.known {
		left = muteInterval
	}
	if left > 0 {
		return &metav1.Condition{
			Type: machineCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonWaitingForReport,
			Message: "the infrastructure is ready, and the machine has not reported yet",
		}, left + time.Second
	}
	return &metav1.Condition{
		Type: machineCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNeverReported,
		Message: fmt.Sprintf(
			"no report within %s after the infrastructure was ready: the machine does not start, its network does not reach "+
				"the gateways, its image has no edge-agent, "+
				"or cloud-init never ran (check the machine's console)",
			c.after,
		),
	}, 0
}

// provisionedSince returns whether the infrastructure of a Machine is ready, and since when if that is known.
func provisionedSince(m *clusterv1.Machine) (time.Time, bool) {
	if !ptr.Deref(m.Status.Initialization.InfrastructureProvisioned, false) {
		return time.Time{}, false
	}
	if c := apimeta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineInfrastructureReadyCondition); c != nil &&
		c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time, true
	}
	return m.CreationTimestamp.Time, true
}
