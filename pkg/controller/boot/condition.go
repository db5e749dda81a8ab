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
	// maxBootMessage is what the condition may have: enough of a log to see what failed, and far below what the apiserver takes.
	maxBootMessage = 2 << 10
	// muteTime is ten of the pauses after which a machine repeats that it is still booting.
	muteTime = 5 * time.Minute
	// muteInterval is how soon a machine is looked at again while not everything is known that machines have reported.
	muteInterval = 30 * time.Second
	// defaultBootReportAfter is longer than most machines take from their infrastructure to their first report.
	defaultBootReportAfter = 10 * time.Minute
)

// reportAfter is BootReportAfter, which may be zero.
func reportAfter(c config.Config) time.Duration {
	return cmp.Or(c.BootReportAfter, defaultBootReportAfter)
}

// bootCircumstances are what a decision about a Machine depends on besides the Machine.
type bootCircumstances struct {
	now      time.Time
	expected bool          // all machines of the Cluster are made to report
	known    bool          // the absence of a report means something
	after    time.Duration // how long a machine may take to its first report
}

// bootCondition is the condition that a Machine has to have, nil: that which it has. again is when time alone may change it; 0: never.
func bootCondition(m *clusterv1.Machine, boot *report.Boot, c bootCircumstances) (want *metav1.Condition, again time.Duration) {
	if boot != nil {
		return reported(*boot, c.now)
	}
	have := apimeta.FindStatusCondition(m.Status.Conditions, machineCondition)
	if have != nil && have.Reason != v1alpha1.ReasonWaitingForReport && have.Reason != v1alpha1.ReasonNeverReported {
		return nil, 0 // the condition of the last report stays
	}
	if !c.expected || !m.DeletionTimestamp.IsZero() {
		return nil, 0
	}
	return unreported(m, have, c)
}

// reported is the condition of a Machine that has reported.
func reported(b report.Boot, now time.Time) (*metav1.Condition, time.Duration) {
	r := b.Report
	c := &metav1.Condition{Type: machineCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonBootstrapInProgress}
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

// finish makes of what a machine said a message that can be shown.
func finish(c *metav1.Condition) *metav1.Condition {
	if c.Message = redact.Text(c.Message); len(c.Message) > maxBootMessage {
		c.Message = c.Message[:maxBootMessage]
	}
	c.Message = strings.ToValidUTF8(c.Message, "")
	return c
}

// unreported is the condition of a Machine that should report and has not.
func unreported(m *clusterv1.Machine, have *metav1.Condition, c bootCircumstances) (*metav1.Condition, time.Duration) {
	node := m.Status.NodeRef.Name
	if node != "" {
		if have == nil || !c.known {
			return nil, 0 // older than the reports, as a rule
		}
		return &metav1.Condition{
			Type: machineCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNeverReported,
			Message: fmt.Sprintf("the machine has booted as the Node %s, but has not reported: its bootstrap config does not run edge-agent report, or its image does not contain edge-agent", node),
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
		Message: fmt.Sprintf("no report within %s after the infrastructure was ready: the machine does not start, its network does not reach the gateways, its image has no edge-agent, "+
			"or cloud-init never ran (check the machine's console)", c.after),
	}, 0
}

// provisionedSince says whether the infrastructure of a Machine is there, and since when, as far as that is known.
func provisionedSince(m *clusterv1.Machine) (time.Time, bool) {
	if !ptr.Deref(m.Status.Initialization.InfrastructureProvisioned, false) {
		return time.Time{}, false
	}
	if c := apimeta.FindStatusCondition(m.Status.Conditions, clusterv1.MachineInfrastructureReadyCondition); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time, true
	}
	return m.CreationTimestamp.Time, true
}
