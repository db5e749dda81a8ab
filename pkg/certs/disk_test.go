package certs_test

import (
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// breakDisk makes writing fail, even for root.
func (i *issuer) breakDisk() {
	i.t.Helper()
	if err := os.RemoveAll(i.dir); err != nil {
		i.t.Error(err)
	}
}

func (i *issuer) repairDisk() {
	i.t.Helper()
	if err := os.Mkdir(i.dir, 0o700); err != nil {
		i.t.Error(err)
	}
}

func TestNoIdentityIsRequestedThatCannotBeSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.breakDisk()
		i.start()
		i.expect("with a full disk", i.pass(time.Hour), 0, 0)
		i.repairDisk()
		i.expect("with room", i.pass(5*time.Second), 1, 1)
		entries, err := os.ReadDir(i.dir)
		if err != nil || len(entries) != 3 {
			t.Errorf("there are %v, %v, want key, leaf and trust bundle", entries, err)
		}
	})
}

func TestAnIdentityThatIsNotSavedIsUsedAndSavedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		used := 0
		i.changed = func() error { used++; return nil }
		i.during = func() { i.breakDisk() }
		i.start()
		i.expect("while the disk is full", i.pass(time.Hour), 1, 1)
		want := serial(t, i.store)
		if want == "" || used != 1 {
			t.Errorf("the store gives %q, and it was used %d times", want, used)
		}
		i.repairDisk()
		i.expect("with room", i.pass(time.Minute), 0, 0)
		if got := serial(t, openStore(t, i.dir)); got != want {
			t.Errorf("the next start gets %q, want %q", got, want)
		}
	})
}

func TestRenewalContinuesWithAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		i.start()
		i.expect("with room", i.pass(time.Minute), 1, 1)
		first := serial(t, i.store)
		i.breakDisk()
		i.expect("with a full disk", i.pass(24*time.Hour), 1, 2)
		if got := serial(t, i.store); got == first {
			t.Errorf("the store still gives %q", got)
		}
	})
}

func TestProbeLeavesNoFile(t *testing.T) {
	i := newIssuer(t)
	if err := i.store.Probe(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(i.dir); err != nil || len(entries) != 0 {
		t.Errorf("there are %v, %v", entries, err)
	}
	i.breakDisk()
	checkError(t, i.store.Probe(), "can be saved")
}

func TestRotationReportsWhetherIdentitiesAreWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		var last atomic.Int32 // 1: written, -1: failed, 0: Written was not called
		i.written = func(err error) {
			if last.Store(1); err != nil {
				last.Store(-1)
			}
		}
		i.during = func() { i.breakDisk() }
		i.start()
		i.expect("while the disk is full", i.pass(time.Second), 1, 1)
		if last.Load() != -1 {
			t.Errorf("with a full disk: %d", last.Load())
		}
		i.repairDisk()
		i.expect("with room", i.pass(time.Minute), 0, 0)
		if last.Load() != 1 {
			t.Errorf("with room: %d", last.Load())
		}
	})
}
