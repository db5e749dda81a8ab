package boot

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/reconciler"
	"github.com/fairlead/fairlead/pkg/enrol"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// fixedBoots is a View with fixed contents.
type fixedBoots struct {
	boots map[string][]report.Boot
	known bool
}

func (f *fixedBoots) Boots(id string) ([]report.Boot, bool) { return f.boots[id], f.known }

// bootWorld is a Cluster with its Tunnel on a real kube-apiserver, and a reconciler of boot reports that has the
// permissions of the controller and a fake clock.
type bootWorld struct {
	t       *testing.T
	m       client.WithWatch
	r       *Reconciler
	view    *fixedBoots
	events  *events.FakeRecorder
	clock   time.Time
	cluster *clusterv1.Cluster
	id      string
}

func newBootWorld(t *testing.T, annotations map[string]string) *bootWorld {
	t.Helper()
	m := controllertest.APIServer(t)
	cluster := kubetest.Cluster(kubetest.NewNamespace(t, m), "c1")
	cluster.Annotations = annotations
	controllertest.Create(t, m, cluster)
	w := &bootWorld{
		t:       t,
		m:       m,
		view:    &fixedBoots{boots: map[string][]report.Boot{}, known: true},
		events:  events.NewFakeRecorder(100),
		clock:   time.Now().Truncate(time.Second),
		cluster: cluster,
	}
	tunnel := controllertest.TunnelNamed(cluster)
	objects.CompleteTunnel(tunnel, cluster)
	controllertest.Create(t, m, tunnel)
	tunnel.Status.ID = tunnel.Spec.ID
	tunnel.Status.BootReportTokens = []v1alpha1.TokenStatus{
		{SHA256: enrol.HashToken("fl1.boot"), ExpiresAt: metav1.NewTime(time.Now().Add(time.Hour)), MaxUses: 1},
	}
	if err := m.Status().Update(t.Context(), tunnel); err != nil {
		t.Fatal(err)
	}
	w.id = tunnel.Spec.ID
	api := controllertest.ClientOf(t, controllertest.ControllerUser)
	w.r = &Reconciler{
		Deps: reconciler.Deps{
			Config:   controllertest.Config(),
			Client:   api,
			Recorder: w.events,
			Log:      slog.New(slog.DiscardHandler),
			Now:      func() time.Time { return w.clock },
		},
		view: w.view,
	}
	return w
}

// machine creates a Machine whose infrastructure is ready as of now.
func (w *bootWorld) machine(name string) *clusterv1.Machine {
	w.t.Helper()
	o := kubetest.Machine(w.cluster.Namespace, w.cluster.Name, name)
	controllertest.Create(w.t, w.m, o)
	o.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	o.Status.Conditions = []metav1.Condition{{
		Type: clusterv1.MachineInfrastructureReadyCondition, Status: metav1.ConditionTrue, Reason: "Ready",
		LastTransitionTime: metav1.NewTime(w.clock),
	}}
	if err := w.m.Status().Update(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
	return o
}

// report sets the report of the one machine that reports, after all Machines were created.
func (w *bootWorld) report(host string, state reportv1.BootState, step, message, tail string) {
	if now := time.Now(); now.After(w.clock) {
		w.clock = now.Truncate(time.Second)
	}
	w.view.boots[w.id] = []report.Boot{{Host: host, Received: w.clock.Add(time.Second), Report: &reportv1.BootReport{
		BootId: "b1", State: state, Step: step, Message: message, Tail: tail, Machine: &reportv1.Machine{Hostname: host},
	}}}
}

// reconcileAfter advances the clock and reconciles once. It returns the requeue time and the conditions of a Machine.
func (w *bootWorld) reconcileAfter(
	after time.Duration, machine *clusterv1.Machine,
) (time.Duration, *metav1.Condition, []metav1.Condition) {
	w.t.Helper()
	w.clock = w.clock.Add(after)
	result, err := w.r.Reconcile(w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.cluster)})
	if err != nil {
		w.t.Fatal(err)
	}
	all := controllertest.Read(w.t, w.m, machine).Status.Conditions
	return result.RequeueAfter, apimeta.FindStatusCondition(all, machineCondition), all
}

func (w *bootWorld) expect(
	after time.Duration, machine *clusterv1.Machine, status metav1.ConditionStatus, reason string,
) *metav1.Condition {
	w.t.Helper()
	_, c, all := w.reconcileAfter(after, machine)
	if c == nil || c.Status != status || c.Reason != reason {
		w.t.Fatalf("condition %+v, want %s %s", c, status, reason)
	}
	if len(all) != 2 {
		w.t.Errorf("conditions of others: %+v", all)
	}
	return c
}

// takeEvents returns the events since the last call.
func (w *bootWorld) takeEvents() (all []string) {
	for {
		select {
		case e := <-w.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func TestABootReportBecomesTheConditionOfItsMachine(t *testing.T) {
	w := newBootWorld(t, nil)
	one, two := w.machine("m1"), w.machine("m2")
	w.report("m1", reportv1.BootState_BOOT_STATE_RUNNING, "cloud-init init", "", "")
	w.expect(0, one, metav1.ConditionUnknown, v1alpha1.ReasonBootstrapInProgress)
	w.report("m1", reportv1.BootState_BOOT_STATE_RUNNING, "kubeadm preflight", "", "")
	if c := w.expect(bootInterval, one, metav1.ConditionUnknown,
		v1alpha1.ReasonBootstrapInProgress); c.Message != "kubeadm preflight" {
		t.Errorf("message %q", c.Message)
	}
	if got := w.takeEvents(); len(got) != 1 {
		t.Errorf("a step is no transition: %q", got)
	}
	if again, c, _ := w.reconcileAfter(bootInterval, one); again <= 0 || again > muteTime+time.Minute ||
		c.Message != "kubeadm preflight" {
		t.Errorf("again after %s: %+v", again, c)
	}
	if c := w.expect(muteTime+time.Minute, one, metav1.ConditionUnknown,
		v1alpha1.ReasonBootstrapInProgress); !strings.Contains(
		c.Message,
		"no report from the machine since",
	) {
		t.Errorf("message %q", c.Message)
	}
	const secret = "abcdef.0123456789abcdef"
	w.report(
		"m1", reportv1.BootState_BOOT_STATE_FAILED, "kubeadm preflight", "port 6443 is in use, token "+secret,
		strings.Repeat("a line of a log with "+secret+"\n", 300)+"the last line",
	)
	c := w.expect(bootInterval, one, metav1.ConditionFalse, v1alpha1.ReasonBootstrapFailed)
	if len(c.Message) > maxBootMessage || len(c.Message) < maxBootMessage/2 ||
		!strings.HasPrefix(c.Message, "kubeadm preflight: port 6443") ||
		!strings.HasSuffix(c.Message, "the last line") ||
		strings.Contains(c.Message, secret[7:]) {
		t.Errorf("message of %d bytes: %s", len(c.Message), c.Message)
	}
	if got := w.takeEvents(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning BootstrapFailed kubeadm preflight") ||
		strings.Contains(got[0], secret[7:]) {
		t.Errorf("events %q", got)
	}
	clear(w.view.boots) // all xds-servers restart, and the machine is gone
	w.view.known = false
	w.expect(time.Hour, one, metav1.ConditionFalse, v1alpha1.ReasonBootstrapFailed)
	w.report("m1", reportv1.BootState_BOOT_STATE_SUCCEEDED, "bootstrapped", "", "")
	before := w.expect(bootInterval, one, metav1.ConditionTrue, v1alpha1.ReasonBootstrapSucceeded)
	version := controllertest.Read(t, w.m, one).ResourceVersion
	w.expect(bootInterval, one, metav1.ConditionTrue, v1alpha1.ReasonBootstrapSucceeded)
	if now := controllertest.Read(t, w.m, one).ResourceVersion; now != version {
		t.Errorf("the same is written again: %+v", before)
	}
	if _, c, _ := w.reconcileAfter(bootInterval, two); c != nil {
		t.Errorf("nobody says that all machines report, and one that does not has %+v", c)
	}
}

func TestASilentMachineGetsACondition(t *testing.T) {
	w := newBootWorld(t, map[string]string{v1alpha1.BootReportsAnnotation: v1alpha1.BootReportsEnabled})
	quiet, bare := w.machine("quiet"), kubetest.Machine(w.cluster.Namespace, "c1", "bare")
	controllertest.Create(t, w.m, bare)
	w.expect(0, quiet, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForReport)
	if got := w.takeEvents(); len(got) != 0 {
		t.Errorf("to wait is no event: %q", got)
	}
	w.view.known = false // it is unknown whether the machine has reported
	w.expect(defaultBootReportAfter, quiet, metav1.ConditionUnknown, v1alpha1.ReasonWaitingForReport)
	w.view.known = true
	c := w.expect(bootInterval, quiet, metav1.ConditionFalse, v1alpha1.ReasonNeverReported)
	if !strings.Contains(c.Message, "cloud-init never ran") {
		t.Errorf("message %q", c.Message)
	}
	if got := w.takeEvents(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning NeverReported") {
		t.Errorf("events %q", got)
	}
	if _, c, _ := w.reconcileAfter(bootInterval, bare); c != nil {
		t.Errorf("a machine without infrastructure has %+v", c)
	}
	now := controllertest.Read(t, w.m, quiet)
	now.Status.NodeRef.Name = "node-1"
	if err := w.m.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if c := w.expect(bootInterval, quiet, metav1.ConditionUnknown, v1alpha1.ReasonNeverReported); !strings.Contains(
		c.Message, "booted as the Node node-1",
	) {
		t.Errorf("message %q", c.Message)
	}
	w.report("quiet", reportv1.BootState_BOOT_STATE_SUCCEEDED, "bootstrapped", "", "")
	w.expect(bootInterval, quiet, metav1.ConditionTrue, v1alpha1.ReasonBootstrapSucceeded)
}

func TestAReportWithoutAMachineIsReportedOnce(t *testing.T) {
	w := newBootWorld(t, nil)
	m := w.machine("m1")
	w.report("somebody", reportv1.BootState_BOOT_STATE_FAILED, "s", "", "")
	if again, c, _ := w.reconcileAfter(0, m); c != nil || again <= 0 || again > unknownSourceTime {
		t.Errorf("again after %s, %+v", again, c)
	}
	for range 3 {
		w.reconcileAfter(unknownSourceTime, m)
	}
	if got := w.takeEvents(); len(got) != 1 || !strings.Contains(got[0], "BootReportUnmatched") ||
		!strings.Contains(got[0], "somebody") {
		t.Errorf("events %q", got)
	}
}

// TestReportsOfOneClusterTouchNoOther has a Machine whose label was changed to another Cluster, and a Machine with the
// same name in that Cluster.
func TestReportsOfOneClusterTouchNoOther(t *testing.T) {
	w := newBootWorld(t, nil)
	other := kubetest.Machine(w.cluster.Namespace, "c2", "m1")
	other.Labels[clusterv1.ClusterNameLabel] = "c1"
	controllertest.Create(t, w.m, other)
	w.report("m1", reportv1.BootState_BOOT_STATE_FAILED, "s", "", "")
	if _, c, _ := w.reconcileAfter(0, other); c != nil {
		t.Errorf("condition %+v", c)
	}
	ours := w.machine("m2")
	w.report("m2", reportv1.BootState_BOOT_STATE_FAILED, "s", "", "")
	w.expect(bootInterval, ours, metav1.ConditionFalse, v1alpha1.ReasonBootstrapFailed)
}

func TestAPausedMachineIsNotChanged(t *testing.T) {
	w := newBootWorld(t, nil)
	m := w.machine("m1")
	controllertest.Edit(
		t, w.m, m, func(m *clusterv1.Machine) { m.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} },
	)
	w.report("m1", reportv1.BootState_BOOT_STATE_FAILED, "s", "", "")
	if _, c, _ := w.reconcileAfter(0, m); c != nil {
		t.Errorf("condition %+v", c)
	}
	controllertest.Edit(t, w.m, m, func(m *clusterv1.Machine) { m.Annotations = nil })
	w.expect(bootInterval, m, metav1.ConditionFalse, v1alpha1.ReasonBootstrapFailed)
}
