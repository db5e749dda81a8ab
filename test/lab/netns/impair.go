package netns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Fate is what happens to one frame. The zero value passes it on.
type Fate struct {
	Drop    bool
	Delay   time.Duration // frames with different delays are reordered
	Twice   bool
	Corrupt bool // changes one byte of the payload of TCP, with a correct checksum
}

// Impairment decides the fate of each frame between a site and its network. Both directions call it, one at a time.
type Impairment func(Frame) Fate

const (
	// vnetHeader is the size of struct virtio_net_hdr, which precedes each frame. It says that the checksum is still to
	// be computed, and how the kernel must segment a frame that is larger than the network's.
	vnetHeader = 10
	// needsChecksum is VIRTIO_NET_HDR_F_NEEDS_CSUM.
	needsChecksum = 1
	// largestFrame is the size of the largest frame before segmentation, with its headers.
	largestFrame = 1<<16 + 1<<8
	// maxDelayed bounds the frames that wait in one direction. The next ones are lost, as in a router.
	maxDelayed = 4096
)

// Impair puts a relay into the site's cable. It returns what removes the relay. Frames that wait then are lost. A site
// has one relay at a time.
func (s *Site) Impair(ctx context.Context, decide Impairment) (repair func(context.Context) error, err error) {
	if s.port == "" {
		return nil, fmt.Errorf("impairing %s: it has no cable of its own", s.Name)
	}
	near, far := "r"+s.port, "q"+s.port
	rewire := func(ctx context.Context) error {
		return errors.Join(s.at.IP(ctx, "link", "delete", near), s.at.IP(ctx, "link", "set", s.port, "master", workSwitch))
	}
	if err := s.at.IP(ctx, "link", "add", near, "type", "veth", "peer", "name", far); err != nil {
		return nil, err
	}
	r, err := s.relay(ctx, near, far)
	if err != nil {
		return nil, errors.Join(err, rewire(ctx))
	}
	var turn sync.Mutex
	alone := func(f Frame) Fate {
		turn.Lock()
		defer turn.Unlock()
		return decide(f)
	}
	go r.forward(r.site, r.network, false, alone)
	go r.forward(r.network, r.site, true, alone)
	return func(ctx context.Context) error {
		return errors.Join(r.site.Close(), r.network.Close(), rewire(ctx))
	}, nil
}

// frameRelay passes frames on between the end of a site's cable and the network.
type frameRelay struct{ site, network *os.File }

func (s *Site) relay(ctx context.Context, near, far string) (r frameRelay, err error) {
	for _, args := range [][]string{
		{"link", "set", s.port, "nomaster"}, {"link", "set", far, "master", workSwitch, "up"}, {"link", "set", near, "up"},
	} {
		if err := s.at.IP(ctx, args...); err != nil {
			return r, err
		}
	}
	err = s.at.Do(func() (err error) {
		if r.site, err = openFrames(s.port); err != nil {
			return err
		}
		if r.network, err = openFrames(near); err != nil {
			return errors.Join(err, r.site.Close())
		}
		return nil
	})
	return r, err
}

// openFrames opens a device of the present namespace for all frames that arrive at it, in the form of packet(7) with
// PACKET_VNET_HDR.
func openFrames(device string) (*os.File, error) {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", device, err)
	}
	all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})) // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", device, err)
	}
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: link.Index}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", device, err), unix.Close(socket))
	}
	return os.NewFile(uintptr(socket), device), nil
}

// forward passes frames on until a device is closed.
func (r frameRelay) forward(from, to *os.File, toSite bool, decide Impairment) {
	buffer := make([]byte, largestFrame)
	var waiting atomic.Int64
	for {
		n, err := from.Read(buffer)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || n < vnetHeader {
			continue // the device is down for a moment: ENETDOWN is reported once
		}
		data := buffer[:n]
		fate := decide(readFrame(data[vnetHeader:], toSite))
		if fate.Drop {
			continue
		}
		if fate.Corrupt {
			corrupt(data)
		}
		if fate.Twice {
			_, _ = to.Write(data) // what the network does not take is lost
		}
		if fate.Delay <= 0 {
			_, _ = to.Write(data)
			continue
		}
		if waiting.Add(1) > maxDelayed {
			waiting.Add(-1)
			continue
		}
		late := slices.Clone(data)
		time.AfterFunc(fate.Delay, func() {
			_, _ = to.Write(late)
			waiting.Add(-1)
		})
	}
}

// corrupt changes a byte of the payload of TCP. It changes nothing in a frame whose checksum is complete, because the
// receiver would drop it.
func corrupt(data []byte) {
	f := readFrame(data[vnetHeader:], false)
	if f.Payload == 0 || data[0]&needsChecksum == 0 {
		return
	}
	data[len(data)-1-rand.IntN(f.Payload)] ^= 0x55
}

// Frame is what a relay knows of a frame.
type Frame struct {
	ToSite  bool
	Flow    string // of TCP, the same in both directions; empty: it is not TCP
	Begins  bool   // the first segment of a TCP connection
	Payload int    // bytes of TCP
}

// Header fields of Ethernet, IPv4 (RFC 791), IPv6 (RFC 8200) and TCP (RFC 9293).
const (
	ethernetHeader = 14
	tcpProtocol    = 6
	tcpHeader      = 20
	tcpSyn         = 2
)

// readFrame reads the headers of a frame. IPv6 extension headers do not occur here.
func readFrame(data []byte, toSite bool) Frame {
	f := Frame{ToSite: toSite}
	if len(data) < ethernetHeader {
		return f
	}
	ip := data[ethernetHeader:]
	var header, end, address, width int
	var protocol byte
	switch {
	case binary.BigEndian.Uint16(data[12:]) == unix.ETH_P_IP && len(ip) >= 20:
		header, end = int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		protocol, address, width = ip[9], 12, 4
	case binary.BigEndian.Uint16(data[12:]) == unix.ETH_P_IPV6 && len(ip) >= 40:
		header, end = 40, 40+int(binary.BigEndian.Uint16(ip[4:]))
		protocol, address, width = ip[6], 8, 16
	}
	if protocol != tcpProtocol || len(ip) < header+tcpHeader || end > len(ip) {
		return f
	}
	tcp := ip[header:]
	ends := []string{
		string(ip[address:address+width]) + string(tcp[:2]), string(ip[address+width:address+2*width]) + string(tcp[2:4]),
	}
	slices.Sort(ends)
	f.Flow, f.Begins = ends[0]+ends[1], tcp[13]&tcpSyn != 0
	f.Payload = max(0, end-header-int(tcp[12]>>4)*4)
	return f
}
