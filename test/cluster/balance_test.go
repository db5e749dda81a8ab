package cluster

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// TestConnectionsStayAtTheirMachine: a load balancer sends new connections to other machines, and the ones that it has
// begun stay where they are.
func TestConnectionsStayAtTheirMachine(t *testing.T) {
	proof.Need(t)
	parts, err := workspace.FindClusterParts()
	must(t, err)
	segment := func() *netns.Segment {
		name, err := netns.NewLabName()
		must(t, err)
		s, err := netns.NewSegment(t.Context(), name, netip.MustParsePrefix("172.30.0.0/24"))
		must(t, err)
		t.Cleanup(func() { s.Close(context.Background()) })
		return s
	}
	offering, reaching := segment(), segment()
	offered := netns.AddressAt(netns.OfferedPrefix, 1)
	var machines []netip.Addr
	for host := 1; host <= 2; host++ {
		machines = append(machines, greeter(t, offering, host, offered))
	}
	must(t, reaching.Reach(t.Context(), offering, parts.RealPath("nft")))
	client, err := reaching.AddMachine(t.Context(), "client", 1)
	must(t, err)
	balance := func(to ...netip.Addr) {
		t.Helper()
		must(t, offering.Route(t.Context(), netip.PrefixFrom(offered, 32), machines...))
		must(t, offering.Balance(t.Context(), parts.RealPath("nft"), map[netip.Addr][]netip.Addr{offered: to}))
	}
	balance(machines...)
	conns := map[string]net.Conn{} // one at each machine
	for range 60 {
		conn, name := greeted(t, client, offered)
		conns[name] = conn
	}
	if len(conns) != 2 {
		t.Fatalf("connections reach only %v", conns)
	}
	for i, machine := range machines {
		balance(machine)
		for range 10 {
			if _, name := greeted(t, client, offered); name != fmt.Sprint("machine ", i+1) {
				t.Errorf("a new connection reaches %s", name)
			}
		}
		for name, conn := range conns {
			if answer := talk(t, conn); answer != name {
				t.Errorf("a connection to %s is answered by %q", name, answer)
			}
		}
	}
}

// greeter starts a machine with the offered address, which answers each line with its name.
func greeter(t *testing.T, s *netns.Segment, host int, offered netip.Addr) netip.Addr {
	t.Helper()
	machine, err := s.AddMachine(t.Context(), fmt.Sprint("machine-", host), host)
	must(t, err)
	must(t, machine.AddAddress(t.Context(), "lo", netip.PrefixFrom(offered, 32)))
	listener, err := machine.Listen(t.Context(), netip.AddrPortFrom(offered, 80).String())
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = fmt.Fprintln(conn, "machine", host)
				}
			}()
		}
	}()
	return netns.AddressAt(s.Prefix, host)
}

// greeted opens a connection and returns the name of the machine that answers.
func greeted(t *testing.T, client *netns.Namespace, address netip.Addr) (conn net.Conn, name string) {
	t.Helper()
	conn, err := client.DialContext(t.Context(), "tcp", netip.AddrPortFrom(address, 80).String())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn, talk(t, conn)
}

func talk(t *testing.T, conn net.Conn) string {
	t.Helper()
	must(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
	_, err := fmt.Fprintln(conn, "name?")
	must(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	must(t, err)
	return line[:len(line)-1]
}
