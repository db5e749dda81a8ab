package controlchannel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
)

// frames writes HTTP/2 frames as a client that obeys no limit.
type frames struct {
	bytes.Buffer
	*http2.Framer
	headers bytes.Buffer
	encoder *hpack.Encoder
}

func newFrames(t testing.TB) *frames {
	t.Helper()
	f := &frames{}
	f.Framer = http2.NewFramer(&f.Buffer, nil)
	f.encoder = hpack.NewEncoder(&f.headers)
	f.WriteString(http2.ClientPreface)
	must(t, f.WriteSettings())
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// call returns the header of a call, with additional fields.
func (f *frames) call(t testing.TB, method string, more ...hpack.HeaderField) []byte {
	t.Helper()
	f.headers.Reset()
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "https"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: domain.Control()},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		must(t, f.encoder.WriteField(field))
	}
	return f.headers.Bytes()
}

// open begins a call and leaves it open.
func (f *frames) open(t testing.TB, stream uint32, method string) {
	t.Helper()
	must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.call(t, method), EndHeaders: true}))
}

// openStreams returns the bytes of a connection with calls that never end.
func openStreams(t testing.TB, n int) []byte {
	t.Helper()
	f := newFrames(t)
	for i := range n {
		f.open(t, uint32(2*i+1), enrolEdge)
	}
	return f.Bytes()
}

// TestAbuseOfHTTP2 sends known attacks on HTTP/2 servers. The connection ends or the excess is rejected, and all other
// callers are served meanwhile.
func TestAbuseOfHTTP2(t *testing.T) {
	tests := map[string]func(t *testing.T) *frames{
		"thousands of open streams": func(t *testing.T) *frames {
			f := newFrames(t)
			f.Write(openStreams(t, 2000)[len(http2.ClientPreface)+9:])
			return f
		},
		"streams that are reset at once": func(t *testing.T) *frames {
			f := newFrames(t)
			for i := range uint32(2000) {
				f.open(t, 2*i+1, enrolEdge)
				must(t, f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
			}
			return f
		},
		"a header that never ends": func(t *testing.T) *frames {
			f := newFrames(t)
			must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.call(t, enrolEdge)}))
			for range 2000 {
				f.headers.Reset()
				must(
					t,
					f.encoder.WriteField(
						hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte{'a'}, 1000)), Sensitive: true},
					),
				)
				must(t, f.WriteContinuation(1, false, f.headers.Bytes()))
			}
			return f
		},
		"a header that is far too large": func(t *testing.T) *frames {
			f := newFrames(t)
			must(t, f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, EndHeaders: true,
				BlockFragment: f.call(t, enrolEdge, hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte{'~'}, 9<<10))}),
			}))
			return f
		},
		"pings": func(t *testing.T) *frames {
			f := newFrames(t)
			for range 5_000 {
				must(t, f.WritePing(false, [8]byte{}))
			}
			return f
		},
		"settings": func(t *testing.T) *frames {
			f := newFrames(t)
			for range 5_000 {
				must(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
			}
			return f
		},
		"data for streams that are not there": func(t *testing.T) *frames {
			f := newFrames(t)
			for i := range uint32(2000) {
				must(t, f.WriteData(2*i+1, false, make([]byte, 1024)))
			}
			return f
		},
		"a message with a length field of 4 GiB": func(t *testing.T) *frames {
			f := newFrames(t)
			f.open(t, 1, enrolEdge)
			must(t, f.WriteData(1, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3}))
			return f
		},
		"more of a message than the window allows": func(t *testing.T) *frames {
			f := newFrames(t)
			f.open(t, 1, enrolEdge)
			must(t, f.WriteData(1, false, []byte{0, 0, 0, 0x7f, 0xff}))
			for range 100 {
				must(t, f.WriteData(1, false, make([]byte, 16<<10)))
			}
			return f
		},
	}
	b := newTestbed(t, controlchannel.Bounds{Unauthenticated: 5 * time.Second})
	for name, build := range tests {
		for client, identity := range map[string]*certs.Identity{"an unauthenticated client": nil, "an edge": ptr(
			b.identity(t, edge, time.Hour))} {
			t.Run(name+" of "+client, func(t *testing.T) {
				raw, err := b.raw(t.Context(), "203.0.113.77:7")
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				must(t, raw.SetDeadline(time.Now().Add(patience)))
				conn := tls.Client(raw, b.clientTLS(t, identity))
				must(t, conn.HandshakeContext(t.Context()))
				read := make(chan int64, 1)
				go func() {
					n, _ := io.Copy(io.Discard, conn)
					read <- n
				}()
				if _, err := conn.Write(build(t).Bytes()); err != nil && errors.Is(err, io.ErrShortWrite) {
					t.Fatal(err)
				}
				b.alive(t)
				_ = conn.Close()
				if n := <-read; n > 4<<20 {
					t.Errorf("it was answered with %d bytes", n)
				}
			})
		}
	}
}

// begin writes calls on one connection, each with a message of the given size that lacks its last bytes. It waits until
// the server closes the connection or ctx ends, and returns how long the connection was open.
func (b *testbed) begin(
	ctx context.Context, t testing.TB, identity *certs.Identity, method string, calls, size int,
) time.Duration {
	t.Helper()
	raw, err := b.raw(ctx, "203.0.113.78:7")
	if err != nil {
		t.Error(err)
		return 0
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	conn, begin := tls.Client(raw, b.clientTLS(t, identity)), time.Now()
	f := newFrames(t)
	for i := range calls {
		f.open(t, uint32(2*i+1), method)
		must(t, f.WriteData(uint32(2*i+1), false, append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(size))...)))
	}
	if _, err := conn.Write(f.Bytes()); err != nil {
		t.Error(err)
	}
	f.Reset()
	reader := http2.NewFramer(io.Discard, conn)
	for frame, err := reader.ReadFrame(); err == nil; frame, err = reader.ReadFrame() {
		switch frame := frame.(type) {
		case *http2.WindowUpdateFrame:
			if frame.StreamID > 0 { // the server has read the size, and waits for the message
				for left := size - 1<<10; left > 0; left -= 16 << 10 {
					must(t, f.WriteData(frame.StreamID, false, make([]byte, min(left, 16<<10))))
				}
			}
		case *http2.PingFrame:
			must(t, f.WritePing(true, frame.Data))
		}
		_, _ = conn.Write(f.Bytes()) // it may have been closed by then
		f.Reset()
	}
	return time.Since(begin)
}

// TestMessagesThatDoNotEnd: nothing else would end such a call, and each of them holds its unread message.
func TestMessagesThatDoNotEnd(t *testing.T) {
	const conns, each, most = 8, 16, 20
	b := newTestbed(t, controlchannel.Bounds{Message: 2 * time.Second, NodeStreams: most})
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	identity := ptr(b.identity(t, edge, time.Hour))
	for range conns {
		all.Go(func() { b.begin(ctx, t, identity, renew, each, 256<<10) })
	}
	eventually.True(t, patience, "the calls of the edge being counted", func() error {
		if n := b.Running(); n != most {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	eventually.True(t, patience, "the calls of the edge being ended", func() error {
		if n := b.Running(); n != 0 {
			return fmt.Errorf("%d are running", n)
		}
		return nil
	})
	if open := b.begin(ctx, t, nil, enrolEdge, 2, 20<<10); open > 10*time.Second {
		t.Errorf("the connection of a caller without a certificate was open for %s", open)
	}
	b.alive(t)
}
