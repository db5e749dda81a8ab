package workspace

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/disk"
)

// A slow disk must behave as any other one, or an agent on it would have other faults than the intended one: it has
// sockets, locks, and no space or no writes when that is tested.
func TestASlowDiskIsADisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a disk needs root")
	}
	w := &Workspace{Dir: t.TempDir()}
	t.Cleanup(func() { w.RunClosers(t.Context()) })
	d, err := w.NewSlowDisk(t.Context(), "slow", 1024)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(d.Path, "file")
	replace := func() (time.Duration, error) {
		began := time.Now()
		err := disk.Replace(file, []byte("text"))
		return time.Since(began), err
	}
	if took, err := replace(); err != nil || took > time.Second {
		t.Fatalf("it took %s: %v", took, err)
	}
	const by = 300 * time.Millisecond
	d.Slow(by)
	if took, err := replace(); err != nil || took < 4*by { // it creates, writes, synchronises and renames a file
		t.Errorf("it took %s: %v", took, err)
	}
	began := time.Now()
	if text, err := os.ReadFile(file); err != nil || string(text) != "text" || time.Since(began) > by {
		t.Errorf("got %q after %s: %v", text, time.Since(began), err)
	}
	d.Slow(0)

	socket := filepath.Join(d.Path, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	time.Sleep(1500 * time.Millisecond) // longer than the kernel may keep attributes of a file
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()

	if err := d.Fill(); err != nil {
		t.Fatal(err)
	}
	if _, err := replace(); err == nil {
		t.Error("it has space although it is full")
	}
	if err := d.Free(); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := d.ReadOnly(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := replace(); err == nil {
		t.Error("it can be written although it is read-only")
	}
	if _, err := open.WriteString("more"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing to a file that was open before: %v", err)
	}
	if err := d.ReadOnly(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := replace(); err != nil {
		t.Error(err)
	}
	lock, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Error(err)
	}
}
