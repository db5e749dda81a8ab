package lab

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// directDevice is the management network's leg in the workload network, directAddress its address there.
const directDevice = "direct0"

var directAddress = addressAt(workloadPrefix, 9)

// ConnectDirectly gives the management network a leg in the workload network, as a VPN would: what is to be moved to tunnels
// is reached like that before.
func (l *Lab) ConnectDirectly(ctx context.Context) error {
	return plug(ctx, cable{
		l.Network.Management, directDevice, netip.PrefixFrom(directAddress, workloadPrefix.Bits()), l.Network.Workload, "work", "direct",
	})
}

// CutDirect makes that leg lose every packet: nobody is told.
func (l *Lab) CutDirect(ctx context.Context) error {
	return l.Network.Management.ip(ctx, "link", "set", directDevice, "down")
}

// Remotes are the other ends of all TCP connections of a process that are established.
func (p *Process) Remotes() ([]netip.AddrPort, error) {
	proc := filepath.Join("/proc", strconv.Itoa(p.PID()))
	links, err := filepath.Glob(filepath.Join(proc, "fd", "*"))
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	file, err := os.Open(filepath.Join(proc, "net", "tcp"))
	if err != nil {
		return nil, fmt.Errorf("reading the connections of %s: %w", p.Name, err)
	}
	defer func() { _ = file.Close() }()
	const established = "01"
	var remotes []netip.AddrPort
	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text()) // sl, local, remote, state, …, inode
		if len(fields) < 10 || fields[3] != established || !own[fields[9]] {
			continue
		}
		remote, err := parseHexAddress(fields[2])
		if err != nil {
			return nil, err
		}
		remotes = append(remotes, remote)
	}
	return remotes, nil
}

// parseHexAddress reads an IPv4 address and a port as /proc/net/tcp has them: the address in the machine's byte order.
func parseHexAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(host)
	if err != nil || len(bytes) != 4 {
		return netip.AddrPort{}, fmt.Errorf("reading address %q of a connection: %w", text, err)
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("reading address %q of a connection: %w", text, err)
	}
	var address [4]byte
	binary.NativeEndian.PutUint32(address[:], binary.BigEndian.Uint32(bytes))
	return netip.AddrPortFrom(netip.AddrFrom4(address), uint16(number)), nil
}
