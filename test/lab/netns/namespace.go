// Package netns builds the networks of a lab out of network namespaces: a management network, a workload network,
// gateways connected to both, sites, and name servers. Input: a name and a number of gateways. Output: namespaces to
// dial, to listen and to run commands in. It removes the namespaces of labs that were killed. It does not know what
// runs in them.
package netns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	namespaceDir = "/run/netns" // where iproute2 keeps namespaces
	etcDir       = "/etc/netns" // what ip netns exec mounts over /etc
)

// Namespace is one network namespace, with a hosts file of its own and no other name service.
type Namespace struct {
	Name string // as ip netns knows it

	mu    sync.Mutex
	hosts map[string][]netip.Addr
}

func newNamespace(ctx context.Context, name string) (*Namespace, error) {
	n := &Namespace{Name: name, hosts: map[string][]netip.Addr{}}
	etc := filepath.Join(etcDir, name)
	if err := os.MkdirAll(etc, 0o755); err != nil {
		return nil, fmt.Errorf("making namespace %s: %w", name, err)
	}
	// A name that is not in the hosts file doesn't exist. That differs from an unavailable DNS.
	if err := os.WriteFile(filepath.Join(etc, "nsswitch.conf"), []byte("hosts: files\n"), 0o644); err != nil {
		return nil, fmt.Errorf("writing nsswitch.conf of %s: %w", name, err)
	}
	if err := n.AddHost("localhost", netip.MustParseAddr("127.0.0.1")); err != nil {
		return nil, err
	}
	if err := ip(ctx, "netns", "add", name); err != nil {
		return nil, err
	}
	if err := n.IP(ctx, "link", "set", "lo", "up"); err != nil {
		RemoveNamespace(context.WithoutCancel(ctx), name)
		return nil, err
	}
	return n, nil
}

// RemoveNamespace ends the processes in a namespace and removes it. It ignores errors: the next lab cleans up.
func RemoveNamespace(ctx context.Context, name string) {
	for _, pid := range NamespacePIDs(ctx, name) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = ip(ctx, "netns", "delete", name)
	_ = os.RemoveAll(filepath.Join(etcDir, name))
}

// NamespacePIDs returns the processes in a namespace; nil: none, or there is no such namespace.
func NamespacePIDs(ctx context.Context, name string) []int {
	out, err := exec.CommandContext(ctx, "ip", "netns", "pids", name).Output()
	if err != nil {
		return nil
	}
	var pids []int
	for field := range strings.FieldsSeq(string(out)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// AddHost makes a name resolve to further addresses, also for processes that run already.
func (n *Namespace) AddHost(name string, addresses ...netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[name] = append(n.hosts[name], addresses...)
	return n.writeHosts()
}

// SetHost makes a name resolve to exactly these addresses, also for running processes. Without addresses it doesn't
// exist.
func (n *Namespace) SetHost(name string, addresses ...netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[name] = addresses
	return n.writeHosts()
}

// Addresses returns the addresses of a name.
func (n *Namespace) Addresses(name string) []netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.hosts[name])
}

// writeHosts writes the file in place: it is mounted into processes, which would not see a new one. A single write
// changes its length, so that no process reads an empty file.
func (n *Namespace) writeHosts() error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.hosts)) {
		for _, address := range n.hosts[name] {
			_, _ = fmt.Fprintf(&text, "%s %s\n", address, name)
		}
	}
	file, err := os.OpenFile(filepath.Join(etcDir, n.Name, "hosts"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("writing the hosts of %s: %w", n.Name, err)
	}
	_, err = file.WriteAt([]byte(text.String()), 0)
	if err := errors.Join(err, file.Truncate(int64(text.Len())), file.Close()); err != nil {
		return fmt.Errorf("writing the hosts of %s: %w", n.Name, err)
	}
	return nil
}

// Do runs a function inside of the namespace. Sockets that it creates stay in the namespace.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The main thread can't end, and its namespace counts as the process's: use another thread.
			defer runtime.UnlockOSThread()
			result <- n.Do(f)
			return
		}
		// Never unlocked: the thread ends with this goroutine, so no other goroutine runs in the wrong network.
		result <- n.enter(f)
	}()
	return <-result
}

func (n *Namespace) enter(f func() error) error {
	file, err := os.Open(filepath.Join(namespaceDir, n.Name))
	if err != nil {
		return fmt.Errorf("entering namespace: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering namespace %s: %w", n.Name, err)
	}
	return f()
}

// DialContext dials as a process inside of the namespace would, with the namespace's names. It tries the addresses of
// a name in turn. The address must be host:port.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	resolved, err := n.resolve(address)
	if err != nil {
		return nil, err
	}
	for _, one := range resolved {
		err = n.Do(func() error {
			dialer := net.Dialer{Timeout: 10 * time.Second}
			conn, err = dialer.DialContext(ctx, network, one)
			return err
		})
		if err == nil {
			break
		}
	}
	return conn, err
}

// Listen listens on an address of the namespace.
func (n *Namespace) Listen(ctx context.Context, address string) (listener net.Listener, err error) {
	err = n.Do(func() error {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return listener, err
}

func (n *Namespace) resolve(address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{address}, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var found []string
	for _, one := range n.hosts[host] {
		found = append(found, net.JoinHostPort(one.String(), port))
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("resolving %s in %s: %w", host, n.Name,
			&net.DNSError{Err: "no such host", Name: host, IsNotFound: true})
	}
	return found, nil
}

// Command returns a command that runs inside of the namespace, with its hosts file. The pid of the process is the
// program's own: ip replaces itself.
func (n *Namespace) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Name, program}, args...)...)
}

// IP runs iproute2 inside of the namespace.
func (n *Namespace) IP(ctx context.Context, args ...string) error {
	return ip(ctx, append([]string{"-netns", n.Name}, args...)...)
}

// ip runs iproute2.
func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("running ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
