package dial_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/logtest"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/model"
)

// forwarding starts a forwarder. It returns its address, its log, and a function that stops it.
func forwarding(t testing.TB, d *dial.Dialer) (address string, log *logtest.Journal, end func() error) {
	t.Helper()
	listener := listenOn(t, "127.0.0.1:0")
	log = &logtest.Journal{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Forward(ctx, listener, slog.New(slog.NewTextHandler(log, nil))) }()
	end = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the forwarder does not end")
		}
	})
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String(), log, end
}

func direct(e model.Endpoint) *dial.Dialer { return &dial.Dialer{Addresses: []model.Endpoint{e}} }

func dialTCP(t testing.TB, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

func TestForwardCarriesBothWaysAndHalfCloses(t *testing.T) {
	address, _, _ := forwarding(t, direct(answering(t, "127.0.0.1:0", echo)))
	sent := make([]byte, 4<<20)
	_, _ = rand.Read(sent)
	conn := dialTCP(t, address)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite() // the other end still answers
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d, or others: %v", len(got), len(sent), err)
	}
}

// TestForwardHasRoomForTheTunnelsOfAnEdge with its lanes, which it opens to each worker while it has clients.
func TestForwardHasRoomForTheTunnelsOfAnEdge(t *testing.T) {
	for name, fleet := range map[string]struct{ gateways, workers, lanes int }{
		"many gateways with the default lanes": {gateways: 16, workers: 1, lanes: model.DefaultLanes},
		"many workers with the default lanes":  {gateways: 16, workers: 6, lanes: model.DefaultLanes},
		"gateways of a Tunnel, with the most lanes": {
			gateways: model.DefaultGatewaysPerTunnel, workers: 6, lanes: model.MaxLanes,
		},
	} {
		t.Run(name, func(t *testing.T) {
			perWorker := model.TunnelsPerWorker + model.TunnelsInLanes(fleet.lanes)
			if n := fleet.gateways * fleet.workers * perWorker; n > dial.MaxForwarded {
				t.Errorf("an edge has %d reverse tunnels, and only %d pass", n, dial.MaxForwarded)
			}
		})
	}
}

func TestForwardPropagatesResets(t *testing.T) {
	for name, answer := range map[string]func(net.Conn){
		"the other end resets":             func(conn net.Conn) { readOnce(conn); _ = conn.(*net.TCPConn).SetLinger(0) },
		"nothing listens at the other end": nil,
		"the other end has closed":         readOnce,
	} {
		t.Run(name, func(t *testing.T) {
			to := dead(t, "127.0.0.1")
			if answer != nil {
				to = answering(t, "127.0.0.1:0", answer)
			}
			address, _, _ := forwarding(t, direct(to))
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return // the end can arrive this early
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = conn.Write([]byte("hello"))
			if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes, error %v: the end did not arrive", n, err)
			}
		})
	}
}

func TestForwardClosesEverythingWithItsContext(t *testing.T) {
	address, _, end := forwarding(t, direct(answering(t, "127.0.0.1:0", echo)))
	conn := dialTCP(t, address)
	_, _ = conn.Write([]byte("x"))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := end(); err != nil {
		t.Errorf("error %v", err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection lives on")
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("it still listens")
	}
}

func TestForwardIsForThisMachineOnly(t *testing.T) {
	listener := listenOn(t, "0.0.0.0:0")
	err := direct(dead(t, "127.0.0.1")).Forward(t.Context(), listener, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "is not a loopback address") {
		t.Errorf("error %v", err)
	}
}

func TestForwardLogsEachReasonOnceAndNoSecret(t *testing.T) {
	proxy := answering(t, "127.0.0.1:0", func(conn net.Conn) {
		readOnce(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
	})
	p, err := dial.ParseProxy("http://alice:"+url.QueryEscape("open-sesame")+"@"+proxy.String(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	address, log, _ := forwarding(
		t, &dial.Dialer{Addresses: []model.Endpoint{{Host: "gateway.example.com", Port: 443}}, Proxy: p},
	)
	for range 5 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			continue // it was reset this early
		}
		_, _ = conn.Write([]byte("payload"))
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	eventually.True(t, patience, "something is in the log", func() error {
		if log.String() == "" {
			return errors.New("nothing is")
		}
		return nil
	})
	got := log.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "rejects the user and password") {
		t.Errorf("the log is\n%s\nwant one line that says why", got)
	}
	for _, secret := range []string{"sesame", "payload", "Basic", "YWxpY2U"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q is in the log:\n%s", secret, got)
		}
	}
}

// TestForwardBuffersLittle has an other end that reads fast, and then stops reading, like an uplink that becomes slow.
// Data that waits in between delays everything behind it. By then the kernel's buffers have grown.
func TestForwardBuffersLittle(t *testing.T) {
	const fast, most = 256 << 20, 700 << 10
	release := make(chan struct{})
	defer close(release)
	to := answering(t, "127.0.0.1:0", func(conn net.Conn) {
		_ = conn.(*net.TCPConn).SetReadBuffer(128 << 10)
		_, _ = io.CopyN(io.Discard, conn, fast)
		<-release
	})
	address, _, _ := forwarding(t, direct(to))
	conn := dialTCP(t, address)
	_ = conn.SetWriteBuffer(16 << 10)
	sent := 0
	for chunk := make([]byte, 16<<10); sent <= fast+64<<20; {
		_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
		n, err := conn.Write(chunk)
		sent += n
		if err != nil {
			break
		}
	}
	t.Logf("%d KiB are on the way", (sent-fast)>>10)
	if sent > fast+most {
		t.Errorf("%d KiB are on the way, want at most %d", (sent-fast)>>10, most>>10)
	}
}

func TestForwardReconnectsAfterAnOutage(t *testing.T) {
	to := dead(t, "127.0.0.1")
	address, _, _ := forwarding(t, direct(to))
	try := func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write([]byte("x"))
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	if try() == nil {
		t.Fatal("somebody answers")
	}
	answering(t, to.String(), echo)
	eventually.True(t, patience, "a connection goes through", try)
}
