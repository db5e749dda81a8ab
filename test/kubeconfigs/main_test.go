// Package kubeconfigs proves that Cluster API itself brings up, changes and removes workload clusters which it reaches only
// through the tunnel: its core, KubeadmControlPlane and kubeadm bootstrap managers against a real management apiserver, and
// machines in network namespaces in which kubeadm makes real control planes out of the bootstrap data. The names of its tests
// are the promises.
//
// Two workload clusters live side by side, one in each mode: the serving certificates of the first have its tunnel hostname,
// those of the second don't. At the end both are moved to a second management cluster. With -short only the first machine of
// each comes up.
package kubeconfigs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/promise"
)

// What every test here says, in short.
var (
	that     = promise.That
	measured = promise.Measured
	must     = promise.Must
)

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

// runAll runs the tests and prints the result. Ctrl-C cleans up too.
func runAll(m *testing.M) int {
	_ = flag.Set("test.parallel", "8") // tests here mostly wait
	log.SetLogger(logr.Discard())      // clients here have nothing to say that a test doesn't
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if reason := whyNot(); reason != "" && os.Getenv("E2E_REQUIRED") == "" {
		fmt.Println("skipping the proof of kubeconfigs:", reason)
		return 0
	}
	start := time.Now()
	finished := context.AfterFunc(ctx, func() {
		labs.closeAll(context.WithoutCancel(ctx))
		os.Exit(1)
	})
	code := m.Run()
	finished()
	measured("total_s", time.Since(start).Seconds())
	fmt.Println(promise.Summary("verify kubeconfigs"))
	return code
}

// whyNot is why the tests can't run here; empty if they can.
func whyNot() string {
	if os.Geteuid() != 0 {
		return "making network namespaces needs root"
	}
	parts, err := lab.FindParts()
	if err == nil {
		err = parts.FindMachineParts()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// labs are those that run now.
var labs running

type running struct {
	sync.Mutex
	all []*lab.Lab
}

func (r *running) add(l *lab.Lab) {
	r.Lock()
	defer r.Unlock()
	r.all = append(r.all, l)
}

// closeAll closes the last one first: the second installation stands on the network of the first.
func (r *running) closeAll(ctx context.Context) {
	r.Lock()
	defer r.Unlock()
	for i := len(r.all) - 1; i >= 0; i-- {
		r.all[i].Close(ctx)
	}
}

// skipUnlessPossible ends a test that can't run here.
func skipUnlessPossible(t *testing.T) {
	t.Helper()
	if reason := whyNot(); reason != "" {
		if os.Getenv("E2E_REQUIRED") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
}

// start starts an installation that ends with the test. The logs of one whose test failed are kept.
func start(t *testing.T, l *lab.Lab, err error) *lab.Lab {
	t.Helper()
	must(t, err)
	labs.add(l)
	begin := time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			if folder, err := l.KeepLogs(); err == nil {
				fmt.Println("the logs of all processes of", t.Name(), "are in", folder)
			}
		}
		l.Close(context.Background())
	})
	must(t, l.Start(t.Context()))
	measured("lab_s", time.Since(begin).Seconds())
	return l
}
