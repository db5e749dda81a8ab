package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/test/lab/netns"
)

// capture searches all TCP payload on an interface for given texts, including texts that span two packets.
type capture struct {
	texts []string
	fd    int
	stop  chan struct{}
	done  sync.WaitGroup

	bytes map[string]int // payload, by the sender's address
	found map[string]int // number of occurrences, by text
	tails map[flow]string
}

// flow is one direction of a connection.
type flow struct {
	addresses [8]byte
	ports     [4]byte
}

// startCapture starts a capture on an interface of a namespace.
func startCapture(t *testing.T, in *netns.Namespace, device string, texts ...string) *capture {
	t.Helper()
	c := &capture{
		texts: texts,
		stop:  make(chan struct{}),
		bytes: map[string]int{},
		found: map[string]int{},
		tails: map[flow]string{},
	}
	must(t, in.Do(func() (err error) {
		c.fd, err = packetSocket(device)
		return err
	}))
	c.done.Go(c.read)
	return c
}

// packetSocket opens a socket that receives all packets of an interface, from the IP header on.
func packetSocket(device string) (int, error) {
	found, err := net.InterfaceByName(device)
	if err != nil {
		return 0, err
	}
	// ETH_P_ALL, because a socket for a single protocol does not receive the packets that this machine sends. In
	// network byte order.
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	// The socket gets its protocol when it is bound; otherwise it would receive packets of all interfaces until then
	// (packet(7)).
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening packet socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20), // so that bursts are not lost
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: found.Index}),
	)
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func (c *capture) read() {
	packet := make([]byte, 1<<17) // packets are large, because the device does the segmentation
	for {
		n, _, err := unix.Recvfrom(c.fd, packet, 0)
		if err == nil {
			c.search(packet[:n])
			continue
		}
		select {
		case <-c.stop: // only when nothing is left to read
			return
		default:
		}
	}
}

// search searches one IPv4 packet.
func (c *capture) search(packet []byte) {
	const ipHeader, tcpHeader, protocolTCP = 20, 20, 6
	if len(packet) < ipHeader+tcpHeader || packet[0]>>4 != 4 || packet[9] != protocolTCP {
		return
	}
	if total := int(binary.BigEndian.Uint16(packet[2:])); total > 0 && total <= len(packet) {
		packet = packet[:total]
	}
	tcp := packet[int(packet[0]&0x0f)*4:]
	if len(tcp) < tcpHeader {
		return
	}
	f := flow{[8]byte(packet[12:20]), [4]byte(tcp[0:4])}
	payload := tcp[min(len(tcp), int(tcp[12]>>4)*4):]
	c.bytes[net.IP(packet[12:16]).String()] += len(payload)
	for _, text := range c.texts {
		// A text that lies completely in the tail was counted with its own packet.
		tail := c.tails[f]
		tail = tail[max(0, len(tail)-len(text)+1):]
		c.found[text] += bytes.Count(append([]byte(tail), payload...), []byte(text))
	}
	const longest = 64
	c.tails[f] = string(payload[max(0, len(payload)-longest):])
}

// end stops the capture and fails the test if packets were lost.
func (c *capture) end(t *testing.T) {
	t.Helper()
	close(c.stop)
	c.done.Wait()
	stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	must(t, errors.Join(err, unix.Close(c.fd)))
	if stats.Drops > 0 {
		t.Errorf("%d of %d packets were not looked at", stats.Drops, stats.Packets)
	}
}
