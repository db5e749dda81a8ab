package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// disk puts the state folder on a disk of its own of 1 MiB, and the sockets elsewhere.
func (p *place) disk() {
	p.t.Helper()
	if err := os.MkdirAll(p.child.StateDir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", p.child.StateDir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		p.t.Skipf("mounting a disk takes root: %v", err)
	}
	p.t.Cleanup(func() { _ = unix.Unmount(p.child.StateDir, unix.MNT_DETACH) })
	p.child.RuntimeDir = filepath.Join(filepath.Dir(p.child.StateDir), "runtime")
}

// protect makes the disk read-only.
func (p *place) protect() {
	p.t.Helper()
	if err := unix.Mount("", p.child.StateDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		p.t.Fatal(err)
	}
}

// fill leaves no room on the disk.
func (p *place) fill() (free func()) {
	p.t.Helper()
	path := filepath.Join(p.child.StateDir, "ballast")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err == nil {
		p.t.Fatal("2 MiB fit into 1 MiB")
	}
	return func() {
		if err := os.Remove(path); err != nil {
			p.t.Error(err)
		}
	}
}

func TestAnEdgeRenewsWithAFullDisk(t *testing.T) {
	gateway, edge, a := newPair(t)
	edge.disk()
	gateway.life = 4 * time.Second
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.works(a)
	free := edge.fill()
	_, before := edge.counts()
	envoytest.Eventually(t, "both renew", func() error {
		if _, now := edge.counts(); now < before+4 {
			return errors.New("too few")
		}
		return nil
	})
	edge.works(a)
	edge.state("the status says it", func(s state) error {
		if !strings.Contains(s.Memberships[0].LastError, "no space left") || !s.Ready {
			return errors.New("it does not")
		}
		return nil
	})
	free()
	edge.state("it is over", func(s state) error {
		if s.Memberships[0].LastError != "" {
			return errors.New("it is not")
		}
		return nil
	})
	edge.works(a)
}

func TestAnEdgeStartsOnAReadOnlyDisk(t *testing.T) {
	gateway, edge, a := newPair(t)
	edge.disk()
	stop := gateway.serve()
	gateway.agent()
	first := edge.agent()
	edge.works(a)
	first.end(t, syscall.SIGTERM)
	edge.protect()
	stop() // it has only the cache
	second := edge.agent()
	edge.works(a)
	edge.ready()
	gateway.serve()
	edge.works(a)
	second.end(t, syscall.SIGTERM)

	edge.child.RuntimeDir = ""
	third := edge.agent()
	<-third.done
	edge.logged("is on a read-only disk: set --runtime-dir", 1)
}
