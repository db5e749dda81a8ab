package report_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/report/view"
)

func bootOf(host string, sequence uint64, step string) *reportv1.BootReport {
	return &reportv1.BootReport{
		BootId: "b", Sequence: sequence, State: reportv1.BootState_BOOT_STATE_RUNNING, Step: step,
		Machine: &reportv1.Machine{Hostname: host},
	}
}

// TestBootsReachTheController runs a real hub behind TLS that restarts, and a view.
func TestBootsReachTheController(t *testing.T) {
	w := newWorld(t)
	p := w.place(t)
	controller := model.ControllerSubject()
	var mu sync.Mutex
	reported := map[string]int{}
	controllers := view.New(func(context.Context) ([]string, error) { return []string{p.Address}, nil },
		func(address string) (*grpc.ClientConn, error) { return w.Dial(t, &controller, address), nil }, func(string) {},
		w.Log)
	controllers.OnBoot(func(id string) {
		mu.Lock()
		defer mu.Unlock()
		reported[id]++
	})
	if watched, err := p.hub.Boot(idA, bootOf("m1", 1, "before")); err != nil || watched {
		t.Errorf("watched %v, %v", watched, err)
	}
	background(t, controllers.Run)
	step := func(host, want string) {
		t.Helper()
		eventually.True(t, patience, want, func() error {
			boots, _ := controllers.Boots(idA)
			for _, b := range boots {
				if b.Report.GetMachine().GetHostname() == host && b.Report.GetStep() == want &&
					time.Since(b.Received) < time.Minute {
					return nil
				}
			}
			return fmt.Errorf("boots %v", boots)
		})
	}
	step("m1", "before")
	if watched, err := p.hub.Boot(idA, bootOf("m1", 2, "after")); err != nil || !watched {
		t.Errorf("watched %v, %v", watched, err)
	}
	step("m1", "after")
	if _, err := p.hub.Boot(idA, bootOf("m1", 1, "overtaken")); err != nil {
		t.Error(err)
	}
	if _, err := p.hub.Boot(idA, bootOf("m2", 1, "second")); err != nil {
		t.Error(err)
	}
	step("m2", "second")
	step("m1", "after")
	if other, _ := controllers.Boots(idB); other != nil {
		t.Errorf("another tunnel has %v", other)
	}
	mu.Lock()
	if reported[idA] == 0 || reported[idB] != 0 {
		t.Errorf("told %v", reported)
	}
	mu.Unlock()

	p.Stop()
	p.start(t) // it has no reports
	eventually.True(t, patience, "all is known again", func() error {
		if _, known := controllers.Boots(idA); !known {
			return errors.New("not yet")
		}
		return nil
	})
	step("m1", "after")
	if _, err := p.hub.Boot(idA, bootOf("m1", 3, "again")); err != nil {
		t.Error(err)
	}
	step("m1", "again")
}
