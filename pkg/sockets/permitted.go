package sockets

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Permitted returns nil if connections can be closed here. It opens a connection to itself and closes it. The error
// names the missing capability or kernel option.
func Permitted() error {
	err := cutOwn()
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("checking that connections can be closed: this needs the capability CAP_NET_ADMIN: %w", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return fmt.Errorf(
			"checking that connections can be closed: this needs a kernel with CONFIG_INET_DIAG_DESTROY: %w", err,
		)
	case err != nil:
		return fmt.Errorf("checking that connections can be closed: %w", err)
	}
	return nil
}

func cutOwn() error {
	client, server, err := connection()
	if err != nil {
		return err
	}
	defer client.Close()
	defer server.Close()
	var k Kernel
	defer k.Close()
	local, remote := Plain(server.LocalAddr().(*net.TCPAddr).AddrPort()),
		Plain(server.RemoteAddr().(*net.TCPAddr).AddrPort())
	s, err := k.Get(local, remote)
	if err == nil {
		err = k.Destroy(s)
	}
	return err
}

// connection opens a TCP connection from this process to itself.
func connection() (client, server net.Conn, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		listener, err = net.Listen("tcp", "[::1]:0")
	}
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	if client, err = net.DialTimeout("tcp", listener.Addr().String(), kernelTime*time.Second); err != nil {
		return nil, nil, err
	}
	for { // skips connections of other processes
		if server, err = listener.Accept(); err != nil {
			_ = client.Close()
			return nil, nil, err
		}
		if server.RemoteAddr().String() == client.LocalAddr().String() {
			return client, server, nil
		}
		_ = server.Close()
	}
}
