package sockets

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"
)

// TestInodeOfASocketOfAnotherProcess gives a connection to a child, as its file descriptor 3.
func TestInodeOfASocketOfAnotherProcess(t *testing.T) {
	client, server, err := connection()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	file, err := server.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	_ = file.Close()
	_ = server.Close() // only the child has it now
	inode, err := Inode(child.Process.Pid, 3)
	if err != nil {
		t.Fatal(err)
	}
	var k Kernel
	defer k.Close()
	local, remote := client.RemoteAddr().(*net.TCPAddr).AddrPort(), client.LocalAddr().(*net.TCPAddr).AddrPort()
	s, err := k.Get(Plain(local), Plain(remote))
	if err != nil || s.Inode() != inode {
		t.Errorf("the inode of %v is %d, of the file %d: %v", s, s.Inode(), inode, err)
	}
	for what, fd := range map[string]int{"no file": 99, "a file that is no socket": 0} {
		if _, err := Inode(child.Process.Pid, fd); !errors.Is(err, ErrGone) {
			t.Errorf("%s: got %v, want %v", what, err, ErrGone)
		}
	}
}
