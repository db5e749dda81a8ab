package sockets

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// netlinkBuffer is the maximum size of one part of a dump.
const netlinkBuffer = 64 << 10

var errShort = errors.New("the kernel's answer is too short")

// call sends one request of sock_diag(7) and passes each socket in the answer to got. After an error, the next call
// opens a new connection to the kernel, because this one may still hold parts of an answer. The kernel requires
// CAP_NET_ADMIN of the thread that opens the connection, and of the thread that sends a request to destroy a socket.
func (k *Kernel) call(kind uint16, flags uint16, body []byte, got func(Socket)) error {
	return raised(func() error { return k.callRaised(kind, flags, body, got) })
}

func (k *Kernel) callRaised(kind uint16, flags uint16, body []byte, got func(Socket)) error {
	if err := k.open(); err != nil {
		return err
	}
	k.seq++
	err := k.exchange(kind, flags, body, got)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESTALE) {
		k.Close()
	}
	return err
}

func (k *Kernel) open() error {
	if k.fd > 0 {
		return nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("opening sock_diag: %w", err)
	}
	patience := unix.Timeval{Sec: kernelTime}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("opening sock_diag: %w", err)
	}
	if k.buffer == nil {
		k.buffer = make([]byte, netlinkBuffer)
	}
	k.fd = fd
	return nil
}

// Close closes the connection to the kernel. The next call opens another one.
func (k *Kernel) Close() {
	if k.fd > 0 {
		_ = unix.Close(k.fd)
	}
	k.fd = 0
}

// exchange sends a request and reads until the end of a dump, an acknowledgement, an error, or the single answer to
// any other request.
func (k *Kernel) exchange(kind, flags uint16, body []byte, got func(Socket)) error {
	message := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(message[0:], uint32(unix.SizeofNlMsghdr+len(body)))
	binary.NativeEndian.PutUint16(message[4:], kind)
	binary.NativeEndian.PutUint16(message[6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(message[8:], k.seq)
	if err := unix.Sendto(k.fd, append(message, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	single := flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0
	for {
		n, _, err := unix.Recvfrom(k.fd, k.buffer, 0)
		if err == unix.EINTR { //nolint:errorlint // x/sys returns it bare
			continue
		}
		if err != nil {
			return err
		}
		done, err := k.parse(k.buffer[:n], single, got)
		if done || err != nil {
			return err
		}
	}
}

// parse parses the messages of one part of an answer. done is true if it was the last part.
func (k *Kernel) parse(data []byte, single bool, got func(Socket)) (done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(data[0:]))
		kind := binary.NativeEndian.Uint16(data[4:])
		seq := binary.NativeEndian.Uint32(data[8:])
		if size < unix.SizeofNlMsghdr || size > len(data) {
			return false, errShort
		}
		body := data[unix.SizeofNlMsghdr:size]
		data = data[min(len(data), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		if seq != k.seq {
			continue // of an abandoned request
		}
		switch kind {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			return true, status(body)
		case unix.SOCK_DIAG_BY_FAMILY:
			s, ok := parseSocket(body)
			if !ok {
				return false, errShort
			}
			got(s)
			if single {
				return true, nil
			}
		}
	}
	return false, nil
}

// status returns the error in the last message of an answer, which begins with a negative errno; nil if it is 0.
func status(body []byte) error {
	if len(body) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}
