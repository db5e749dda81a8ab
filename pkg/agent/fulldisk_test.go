package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAFirstStartWaitsForRoomOnTheDisk(t *testing.T) {
	gateway, edge, a := newPair(t)
	if err := os.MkdirAll(edge.child.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", edge.child.StateDir, "tmpfs", 0, "size=4m,nr_inodes=64,mode=0700"); err != nil {
		t.Skipf("mounting a disk takes root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(edge.child.StateDir, unix.MNT_DETACH) })
	edge.child.RuntimeDir = filepath.Join(filepath.Dir(edge.child.StateDir), "runtime")
	var ballast []string
	for err := error(nil); !errors.Is(err, syscall.ENOSPC); {
		path := filepath.Join(edge.child.StateDir, fmt.Sprintf("ballast-%d", len(ballast)))
		if err = os.Mkdir(path, 0o700); err == nil {
			ballast = append(ballast, path)
		}
		if len(ballast) > 64 {
			t.Fatalf("the disk is never full: %v", err)
		}
	}
	gateway.serve()
	gateway.agent()
	edge.agent()
	edge.logged("cannot start: the disk is full, retrying", 1)
	if shown, _ := edge.counts(); shown > 1 { // the gateway's token
		t.Errorf("%d tokens were used", shown)
	}
	for _, path := range ballast {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	edge.works(a)
}

func TestAnAgentThatWaitsForRoomCanBeStopped(t *testing.T) {
	_, edge, _ := newPair(t)
	if err := os.MkdirAll(edge.child.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", edge.child.StateDir, "tmpfs", 0, "nr_inodes=1,mode=0700"); err != nil {
		t.Skipf("mounting a disk takes root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(edge.child.StateDir, unix.MNT_DETACH) })
	waiting := edge.agent()
	edge.logged("cannot start: the disk is full, retrying", 1)
	waiting.end(t, syscall.SIGTERM)
}
