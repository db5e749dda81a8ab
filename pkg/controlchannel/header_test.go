package controlchannel

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/pires/go-proxyproto"
)

// from is a connection with only an address.
type from struct{ net.Conn }

func (from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 9), Port: 9} }

// FuzzHeader writes bytes that a gateway, or any client of the listener, may send before TLS. Without a header the
// caller has the address of the connection; with one it has the address in the header, and counts as public. The bytes
// after the header are left for TLS.
func FuzzHeader(f *testing.F) {
	for _, h := range []*proxyproto.Header{
		proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1}, &net.TCPAddr{IP: net.IPv4(
			192, 0, 2, 1), Port: 443}),
		proxyproto.HeaderProxyFromAddrs(2, &net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 1},
			&net.TCPAddr{IP: net.ParseIP("2001:db8::1"), Port: 443}),
		proxyproto.HeaderProxyFromAddrs(1, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1}, &net.TCPAddr{IP: net.IPv4(
			192, 0, 2, 1), Port: 443}),
		{Version: 2, Command: proxyproto.LOCAL},
		{Version: 2, Command: proxyproto.PROXY, TransportProtocol: proxyproto.UnixStream},
	} {
		data, err := h.Format()
		if err != nil {
			continue
		}
		f.Add(append(data, "\x16\x03\x01"...))
		f.Add(data[:len(data)-1])
	}
	f.Add([]byte("\x16\x03\x01\x00\x00"))
	f.Add([]byte("PROXY UNKNOWN\r\nx"))
	f.Add(append(append([]byte{}, proxyproto.SIGV2...), 0x21, 0x11, 0xff, 0xff))
	f.Add(bytes.Repeat([]byte("PROXY TCP4 "), 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := bufio.NewReaderSize(bytes.NewReader(data), readAhead)
		client, err := readHeader(from{}, reader)
		if err != nil {
			return
		}
		rest, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasSuffix(data, rest) {
			t.Fatal("what follows the header is not what was sent")
		}
		if !client.public &&
			(client.Addr != (from{}).RemoteAddr() && client.String() != (from{}).RemoteAddr().String() || len(rest) != len(
				data)) {
			t.Errorf("without a header the caller is %s, and %d of %d bytes are left", client.Addr, len(rest), len(data))
		}
		if at, ok := client.Addr.(*net.TCPAddr); !ok || at == nil {
			t.Errorf("the caller is %T %v", client.Addr, client.Addr)
		} else if client.public && len(rest) == len(data) {
			t.Error("a header was read, and nothing of it")
		}
		if used := len(data) - len(rest); used > 64<<10 {
			t.Errorf("a header of %d bytes was read", used)
		}
	})
}
