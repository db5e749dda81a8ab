package netns

import (
	"io"
	"net"
)

// ForwardAll forwards every connection to another one until the listener is closed.
func ForwardAll(listener net.Listener, dial func() (net.Conn, error)) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = client.Close() }()
			server, err := dial()
			if err != nil {
				return
			}
			defer func() { _ = server.Close() }()
			done := make(chan struct{}, 2)
			go Pipe(server, client, done)
			go Pipe(client, server, done)
			<-done
		}()
	}
}

// Pipe copies until one side ends.
func Pipe(to io.Writer, from io.Reader, done chan<- struct{}) {
	_, _ = io.Copy(to, from)
	done <- struct{}{}
}
