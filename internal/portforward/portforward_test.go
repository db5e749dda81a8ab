package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// patience bounds each wait for something that takes less than closeTime.
const patience = 20 * time.Second

// TestCloseWithAPeerThatDoesNotRead closes a connection while a write on it blocks.
func TestCloseWithAPeerThatDoesNotRead(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		deaf(t, w, r, release)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) }) // before server.Close, which waits for the handler

	conn, err := podAt(t, server.URL).Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	progress := make(chan struct{}, 1)
	go func() {
		for {
			if _, err := conn.Write(make([]byte, 64<<10)); err != nil {
				written <- err
				return
			}
			progress <- struct{}{}
		}
	}()
	for blocked := false; !blocked; {
		select {
		case <-progress:
		case err := <-written:
			t.Fatalf("a write failed before Close: %v", err)
		case <-time.After(time.Second):
			blocked = true
		}
	}

	closed := make(chan struct{})
	go func() {
		_ = conn.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatalf("Close still blocks after %s, because the peer does not read", patience)
	}
	select {
	case err := <-written:
		t.Logf("the blocked write ended: %v", err)
	case <-time.After(patience):
		t.Fatalf("a write still blocks %s after Close", patience)
	}
}

// TestDialEndsItsRequest ends the context of a Dial to a server that does not answer.
func TestDialEndsItsRequest(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ended <- err
			return
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		buffer := make([]byte, 4<<10)
		if _, err := conn.Read(buffer); err == nil { // the request
			cancel()
		}
		_, err = io.Copy(io.Discard, conn)
		ended <- err
	}()

	if _, err := podAt(t, "http://"+listener.Addr().String()).Dial(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial returned %v, want %v", err, context.Canceled)
	}
	if err := <-ended; err != nil {
		t.Errorf("the connection stays open after the end of the context: %v", err)
	}
}

func podAt(t *testing.T, server string) *Pod {
	t.Helper()
	at, err := url.Parse(server + "/api/v1/namespaces/fairlead-system/pods/gateway-0/portforward")
	if err != nil {
		t.Fatal(err)
	}
	return &Pod{Name: "gateway-0", port: 3128, rest: &rest.Config{Host: server}, url: at}
}

// deaf serves a port-forward, and reads nothing after both of its streams exist.
func deaf(t *testing.T, w http.ResponseWriter, r *http.Request, release <-chan struct{}) {
	upgrader := websocket.Upgrader{Subprotocols: websocket.Subprotocols(r)[:1]}
	upgraded, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		t.Errorf("upgrading: %v", err)
		return
	}
	defer upgraded.Close()
	stop := make(chan struct{})
	tunnel := &muted{
		Conn: portforward.NewTunnelingConnection("server", upgraded), stop: stop, release: release,
	}
	streams := 0
	session, err := spdy.NewServerConnection(tunnel, func(httpstream.Stream, <-chan struct{}) error {
		if streams++; streams == 2 {
			close(stop)
		}
		return nil
	})
	if err != nil {
		t.Errorf("accepting a session: %v", err)
		return
	}
	<-release
	_ = session.Close()
}

// muted is a connection whose Read blocks from the end of stop to the end of release.
type muted struct {
	net.Conn
	stop, release <-chan struct{}
}

func (m *muted) Read(p []byte) (int, error) {
	select {
	case <-m.stop:
		<-m.release
		return 0, io.EOF
	default:
		return m.Conn.Read(p)
	}
}

// TestPermitted: only the apiserver's denial is a denial.
func TestPermitted(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		code   int
		denied bool
	}{
		"allowed":   {answer: `{"status":{"allowed":true}}`, code: http.StatusCreated},
		"denied":    {answer: `{"status":{"allowed":false}}`, code: http.StatusCreated, denied: true},
		"not known": {answer: `{}`, code: http.StatusInternalServerError},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tc.code)
			_, _ = io.WriteString(w, tc.answer)
		}))
		err := Permitted(t.Context(), &rest.Config{Host: server.URL}, "fairlead-system")
		server.Close()
		if apierrors.IsForbidden(fmt.Errorf("wrapped: %w", err)) != tc.denied || err != nil != tc.denied {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
