package networks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/world"
)

const (
	// nameTime is how long check may take to name a fault after its injection, on a busy machine; cureTime is the same
	// for the end of the fault after its cure.
	nameTime, cureTime = 90 * time.Second, 2 * time.Minute
	// streamTime is how long a watch must stay open here.
	streamTime = 200 * time.Millisecond
)

// fault is a fault that is injected, and the expected answer of check. docs/troubleshooting.md has a table of all
// faults.
type fault struct {
	Title  string // what is broken, for people
	Hop    check.ID
	Status check.Status // default: Broken
	Cause  string       // a text in the cause
	Cure   string       // a text in the cure
	Do     string       // the cure in short, for the table; the test does the same
	Short  bool         // runs with -short too
	Of     string       // the Cluster that is checked; default: shop
	// Only means that the fault has ended when its own hop is ok, whatever the others are: what the test has added to
	// inject it is removed afterwards.
	Only bool
	// healthy returns a condition that is nil once the cure has worked; nil: see Only.
	healthy func(f *fleet) func(context.Context) error
	// inject injects the fault, and returns a function that follows the cure.
	inject func(t *testing.T, f *fleet) (cure func(t *testing.T))
	after  func(t *testing.T, f *fleet) // reverts what the cure does not; nil: nothing
}

// checked runs the command that an operator would run, in the management network.
func (f *fleet) checked(ctx context.Context, cluster string) (report check.Report, err error) {
	args := []string{
		"check", "-n", world.Namespace, cluster, "-o", "json", "--watch-for=" + streamTime.String(), f.inspection(),
	}
	cmd, err := f.Command(ctx, args...)
	if err != nil {
		return report, err
	}
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || len(out) == 0 {
		return report, fmt.Errorf("running fairlead check: %w: %s", err, complaint.String())
	}
	if broken := exit != nil; json.Unmarshal(out, &report) == nil && broken != (report.Status == check.Broken) {
		return report, fmt.Errorf("the result is %s, and the exit code of check says otherwise: %w", report.Status, err)
	}
	return report, nil
}

// inspection returns the flag with the addresses of the xds-servers, which have no Pods here.
func (f *fleet) inspection() string {
	var all []string
	for i := range f.XDSServers {
		all = append(all, lab.InspectAddress(i))
	}
	return "--xds-server=" + strings.Join(all, ",")
}

// green returns a condition that is nil once check finds no problem, and has tested every hop of networks.
func (f *fleet) green(cluster string) func(context.Context) error {
	return func(ctx context.Context) error {
		report, err := f.checked(ctx, cluster)
		switch {
		case err != nil:
			return err
		case report.Status != check.OK:
			return fmt.Errorf("check says %s", told(report))
		}
		for _, id := range []check.ID{
			check.HopNetworks, check.HopEgress, check.HopEgressRoute, check.HopNetworkEdges, check.HopNodes, check.HopForward,
		} {
			if hop(report, id).Status != check.OK {
				return fmt.Errorf("the hop %s is %+v", id, hop(report, id))
			}
		}
		return nil
	}
}

// hopIs returns a condition that is nil once one hop of a Cluster is ok.
func (f *fleet) hopIs(cluster string, id check.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		report, err := f.checked(ctx, cluster)
		if err == nil && hop(report, id).Status != check.OK {
			err = fmt.Errorf("check says %+v, and decides %s", hop(report, id), told(report))
		}
		return err
	}
}

func hop(r check.Report, id check.ID) (found check.Result) {
	for _, h := range r.Hops {
		if h.ID == id {
			found = h
		}
	}
	return found
}

// told returns the conclusion of a report.
func told(r check.Report) string {
	v := r.Deciding()
	if v == nil {
		return string(r.Status)
	}
	return fmt.Sprintf("%s at %s: %s; cause: %s; cure: %s", r.Status, v.ID, v.Detail, v.Cause, v.Cure)
}

// expected reports whether a report names the fault.
func (x fault) expected(r check.Report) bool {
	v := r.Deciding()
	return v != nil && r.Status == cmp.Or(x.Status, check.Broken) && v.ID == x.Hop &&
		strings.Contains(v.Cause, x.Cause) && strings.Contains(v.Cure, x.Cure)
}

// prove injects a fault, waits until check names it, follows the cure, and waits until check finds no problem.
func (f *fleet) prove(t *testing.T, x fault) {
	t.Helper()
	if testing.Short() && !x.Short {
		return
	}
	that(t, "check names the fault: "+x.Title, func(t *testing.T) {
		of := cmp.Or(x.Of, "shop")
		cure := x.inject(t, f)
		began := time.Now()
		var last check.Report
		err := proc.Wait(t.Context(), nameTime, func(ctx context.Context) (err error) {
			last, err = f.checked(ctx, of)
			if err == nil && !x.expected(last) {
				err = fmt.Errorf("check says %s", told(last))
			}
			return err
		})
		if err != nil {
			f.show(t, of)
			t.Errorf("want %s %s, %q, %q: %v", x.Status, x.Hop, x.Cause, x.Cure, err)
		} else {
			measured("named_s", time.Since(began).Seconds())
			t.Logf("named after %.1f s: %s", time.Since(began).Seconds(), told(last))
		}
		cure(t)
		healthy := f.green(of)
		switch {
		case x.healthy != nil:
			healthy = x.healthy(f)
		case x.Only:
			healthy = f.hopIs(of, x.Hop)
		}
		if err := proc.Wait(t.Context(), cureTime, healthy); err != nil {
			f.show(t, of)
			t.Fatalf("after the cure: %v", err)
		}
		if x.after != nil {
			x.after(t, f)
		}
	})
	f.cleanUp(t)
}

// show prints what an operator would see.
func (f *fleet) show(t *testing.T, cluster string) {
	t.Helper()
	out, _ := f.Exec(t.Context(), "check", "-n", world.Namespace, cluster, f.inspection())
	t.Logf("fairlead check says:\n%s", out)
}

// extra is a network that faults add to shop.
const extra = "extra"

// cleanUp removes the network that a fault has added.
func (f *fleet) cleanUp(t *testing.T) {
	t.Helper()
	must(t, client.IgnoreNotFound(f.Management.Client.Delete(t.Context(), &v1alpha1.RemoteNetwork{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: extra},
	})))
	eventually(t, func(ctx context.Context) error {
		_, err := f.Cluster(types.NamespacedName{
			Namespace: world.Namespace, Name: extra + v1alpha1.NetworkTunnelSuffix,
		}).Tunnel(ctx)
		if err == nil {
			err = errors.New("the Tunnel of the additional network still exists")
		}
		return client.IgnoreNotFound(err)
	})
}

// faults proves that check names each fault of a network, and that its cure works.
func (f *fleet) faults(t *testing.T) {
	that(t, "check finds no problem before a fault is injected", func(t *testing.T) {
		for _, cluster := range []string{"shop", "bank"} {
			if err := proc.Wait(t.Context(), cureTime, f.green(cluster)); err != nil {
				f.show(t, cluster)
				t.Fatal(err)
			}
		}
	})
	for _, x := range allFaults()[1:] {
		f.prove(t, x)
	}
}

// restart restarts an agent and its Envoy with another spec, and returns a function that reverts it.
func restart(t *testing.T, a *lab.Agent, change func(*proc.Spec)) func(*testing.T) {
	t.Helper()
	usual := a.Process().Spec
	with := func(t *testing.T, change func(*proc.Spec)) {
		t.Helper()
		world.StopEdge(t, a)
		a.Change(change)
		a.Resume()
	}
	with(t, change)
	return func(t *testing.T) { with(t, func(s *proc.Spec) { *s = usual }) }
}

// patched changes a RemoteNetwork, and returns a function that changes it again.
func (f *fleet) patched(t *testing.T, network, patch, back string) func(*testing.T) {
	t.Helper()
	f.patchNetwork(t, network, patch)
	return func(t *testing.T) { f.patchNetwork(t, network, back) }
}

// restartAPIServer replaces the process of the apiserver by one with other flags.
func (h *controlPlane) restartAPIServer(t *testing.T, change func(args []string) []string) {
	t.Helper()
	spec := h.APIServer.Process.Spec
	h.APIServer.Process.Kill()
	<-h.APIServer.Process.Done()
	spec.Args = change(spec.Args)
	process, err := proc.Start(spec)
	must(t, err)
	h.world.OnClose(func(context.Context) { process.Kill() })
	h.APIServer.Process = process
	eventually(t, func(ctx context.Context) error {
		_, err := h.Kubectl(ctx, "get", "--raw=/readyz")
		return err
	})
}
