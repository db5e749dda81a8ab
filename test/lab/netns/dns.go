package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsAddress is the address of a namespace's own name server.
const dnsAddress = "127.0.0.53"

// dnsTTL is the lifetime of answers in seconds.
const dnsTTL = 1

// DNS is the name server of one namespace.
type DNS struct {
	socket net.PacketConn

	mu    sync.Mutex
	names map[string][]netip.Addr // with a dot at the end
}

// ServeDNS runs a name server for a site until ctx ends. Programs that start later query it for names that the hosts
// file doesn't have; the gateways' public name is in neither.
func (s *Site) ServeDNS(ctx context.Context) (*DNS, error) {
	if err := s.SetHost(PublicName); err != nil {
		return nil, fmt.Errorf("giving a site a name server: %w", err)
	}
	d, err := s.serveDNS(ctx)
	if err == nil {
		context.AfterFunc(ctx, d.Close)
	}
	return d, err
}

// serveDNS runs a name server for a namespace. Programs that start later query it for names that the hosts file
// doesn't have.
func (n *Namespace) serveDNS(ctx context.Context) (*DNS, error) {
	etc := filepath.Join(etcDir, n.Name)
	err := errors.Join(
		os.WriteFile(filepath.Join(etc, "nsswitch.conf"), []byte("hosts: files dns\n"), 0o644),
		os.WriteFile(filepath.Join(etc, "resolv.conf"), []byte("nameserver "+dnsAddress+"\n"), 0o644),
	)
	if err != nil {
		return nil, fmt.Errorf("giving %s a name server: %w", n.Name, err)
	}
	return n.ListenDNS(ctx, dnsAddress)
}

// ListenDNS runs a name server at port 53 of an address of the namespace until Close. Programs query it if they are
// configured to.
func (n *Namespace) ListenDNS(ctx context.Context, address string) (*DNS, error) {
	d := &DNS{names: map[string][]netip.Addr{}}
	err := n.Do(func() (err error) {
		d.socket, err = new(net.ListenConfig).ListenPacket(ctx, "udp", net.JoinHostPort(address, "53"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("starting a name server in %s: %w", n.Name, err)
	}
	go d.serve()
	return d, nil
}

// Close ends the name server.
func (d *DNS) Close() { _ = d.socket.Close() }

// Set sets the addresses of a name. Without addresses the name does not exist.
func (d *DNS) Set(name string, addresses ...netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[name+"."] = addresses
}

func (d *DNS) serve() {
	packet := make([]byte, 4096)
	for {
		n, from, err := d.socket.ReadFrom(packet)
		if err != nil {
			return
		}
		if answer, err := d.answer(packet[:n]); err == nil {
			_, _ = d.socket.WriteTo(answer, from)
		}
	}
}

// answer answers a query with one question.
func (d *DNS) answer(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	addresses := d.names[strings.ToLower(question.Name.String())]
	d.mu.Unlock()
	response := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, RecursionDesired: header.RecursionDesired,
			RecursionAvailable: true, Authoritative: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	if len(addresses) == 0 {
		response.RCode = dnsmessage.RCodeNameError
	}
	for _, address := range addresses {
		resource := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{
			Name: question.Name, Class: dnsmessage.ClassINET,
			TTL: dnsTTL,
		}}
		switch {
		case question.Type == dnsmessage.TypeA && address.Is4():
			resource.Body = &dnsmessage.AResource{A: address.As4()}
		case question.Type == dnsmessage.TypeAAAA && address.Is6():
			resource.Body = &dnsmessage.AAAAResource{AAAA: address.As16()}
		default:
			continue
		}
		response.Answers = append(response.Answers, resource)
	}
	return response.Pack()
}
