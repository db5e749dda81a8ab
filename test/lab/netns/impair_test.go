package netns

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// echo answers each connection to a namespace with what it sends.
func echo(t *testing.T, namespace *Namespace, address string) {
	t.Helper()
	listener, err := namespace.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
		}
	}()
}

// exchange sends bytes and returns what came back within some time.
func exchange(conn net.Conn, sent []byte, within time.Duration) ([]byte, error) {
	_ = conn.SetDeadline(time.Now().Add(within))
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- err
	}()
	got := make([]byte, len(sent))
	_, err := io.ReadFull(conn, got)
	return got, errors.Join(err, <-wrote)
}

func TestImpairedCable(t *testing.T) {
	for name, family := range map[string]Family{"IPv4": IPv4, "IPv6": IPv6} {
		t.Run(name, func(t *testing.T) { impairedCable(t, testNetwork(t, family)) })
	}
}

func impairedCable(t *testing.T, n *Network) {
	site, err := n.AddSite(t.Context(), "far")
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(site.Address.String(), "7000")
	echo(t, site.Namespace, address)
	open := func(t *testing.T) net.Conn {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		conn, err := n.Workload.DialContext(ctx, "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	impair := func(t *testing.T, decide Impairment) {
		t.Helper()
		repair, err := site.Impair(t.Context(), decide)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := repair(context.Background()); err != nil {
				t.Error(err)
			}
			if _, err := exchange(open(t), []byte("again"), 5*time.Second); err != nil {
				t.Error("after the repair:", err)
			}
		})
	}
	large := make([]byte, 2<<20)
	_, _ = rand.Read(large)

	t.Run("passes everything on", func(t *testing.T) {
		impair(t, func(Frame) Fate { return Fate{} })
		got, err := exchange(open(t), large, 20*time.Second)
		if err != nil || !bytes.Equal(got, large) {
			t.Error("the bytes are not those that were sent:", err)
		}
	})
	t.Run("delays", func(t *testing.T) {
		conn := open(t)
		impair(t, func(Frame) Fate { return Fate{Delay: 100 * time.Millisecond} })
		begin := time.Now()
		if _, err := exchange(conn, []byte("slow"), 10*time.Second); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < 200*time.Millisecond {
			t.Errorf("it took %s, want at least twice the delay", took)
		}
	})
	t.Run("loses, repeats and reorders without changing a byte", func(t *testing.T) {
		count := 0
		impair(t, func(Frame) Fate {
			count++
			return Fate{Drop: count%29 == 0, Twice: count%13 == 0, Delay: time.Duration(count%7) * time.Millisecond}
		})
		got, err := exchange(open(t), large[:256<<10], 60*time.Second)
		if err != nil || !bytes.Equal(got, large[:256<<10]) {
			t.Error("the bytes are not those that were sent:", err)
		}
	})
	t.Run("corrupts with a correct checksum", func(t *testing.T) {
		conn := open(t)
		impair(t, func(f Frame) Fate { return Fate{Corrupt: f.ToSite} })
		got, err := exchange(conn, []byte("a text that is long enough"), 10*time.Second)
		if err != nil || string(got) == "a text that is long enough" {
			t.Errorf("read %q, %v, want another text", got, err)
		}
	})
	t.Run("knows which connections began", func(t *testing.T) {
		old := open(t)
		if _, err := exchange(old, []byte("before"), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		known := map[string]bool{}
		impair(t, func(f Frame) Fate {
			known[f.Flow] = known[f.Flow] || f.Begins
			return Fate{Drop: f.Flow != "" && !known[f.Flow]}
		})
		if _, err := exchange(old, []byte("after"), time.Second); err == nil {
			t.Error("a connection from before is still known")
		}
		if _, err := exchange(open(t), []byte("new"), 5*time.Second); err != nil {
			t.Error("a new connection:", err)
		}
	})
}
