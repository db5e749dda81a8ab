package proc

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ, which is 100 on all architectures of Linux.
const ticks = 10 * time.Millisecond

// CPU returns the CPU time that a process has used.
func CPU(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading the time of process %d: %w", pid, err)
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const user, system = 11, 12 // fields 14 and 15, without the first two
	if len(fields) <= system {
		return 0, fmt.Errorf("reading the time of process %d: %q", pid, data)
	}
	var sum time.Duration
	for _, f := range fields[user : system+1] {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return 0, fmt.Errorf("reading the time of process %d: %w", pid, err)
		}
		sum += time.Duration(n) * ticks
	}
	return sum, nil
}

// Files returns how many files a process has open.
func Files(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("counting the files of process %d: %w", pid, err)
	}
	return len(entries), nil
}

// Remotes returns the peers of all established TCP connections of a process.
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

// parseHexAddress parses an IPv4 address and a port from /proc/net/tcp, which has the address in host byte order.
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

// Answers200 returns a condition that holds if a URL answers 200.
func Answers200(httpClient *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := httpClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		return err
	}
}

// Listens returns a condition that holds as soon as a Unix socket accepts connections.
func Listens(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Insecure returns a configuration for servers whose certificates are not known.
func Insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }
