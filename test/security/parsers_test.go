package security

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/pires/go-proxyproto"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// parserAttacks sends malformed input to every parser of external input.
func parserAttacks(t *testing.T, in *installation) {
	xdsServer := in.find(t, "control channel")
	public := in.find(t, "public")
	before := in.envoys(t)
	in.bomb(t)
	in.headers(t, xdsServer, public)
	in.hellos(t, public)
	in.garbage(t, public)
	that(t, "no Envoy ends during the attacks, and both workload clusters stay reachable", func(t *testing.T) {
		if after := in.envoys(t); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the Envoys were %v, are %v", before, after)
		}
		for _, m := range []*world.Member{in.victim, in.tenant} {
			must(t, proc.Wait(t.Context(), patience, m.Works))
		}
	})
}

// patience is long enough for a busy machine.
const patience = 30 * time.Second

// find returns the port of a row.
func (in *installation) find(t *testing.T, name string) port {
	t.Helper()
	for _, p := range in.listening(t) {
		if r := matching(p); r != nil && r.name == name {
			return p
		}
	}
	t.Fatalf("there is no port %q", name)
	return port{}
}

// envoys returns the process ids of the gateways' Envoys.
func (in *installation) envoys(t *testing.T) (pids []int) {
	t.Helper()
	for _, g := range in.Gateways {
		pid, err := g.EnvoyPID()
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// hostileEdge enrols with the tenant's own token, as a tenant may, but runs no agent of ours.
func (in *installation) hostileEdge(t *testing.T) outsider.Outsider {
	t.Helper()
	in.tenant.BootstrapFile(t)
	secret, err := in.tenant.Secret(t.Context(), v1alpha1.BootstrapSecretSuffix)
	must(t, err)
	key, err := certs.NewKey()
	must(t, err)
	csr, err := certs.NewCSR(key)
	must(t, err)
	client := outsider.Outsider{From: in.Network.Workload, Domain: world.Domain, Roots: in.Roots(t)}
	conn, err := client.Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	var chain []byte
	eventually(t, func(ctx context.Context) error {
		answer, err := enrolv1.NewEnrolmentClient(conn).EnrolEdge(ctx, &enrolv1.EnrolEdgeRequest{
			Token: string(secret.Data[v1alpha1.BootstrapTokenKey]), Csr: csr, Host: "hostile",
		})
		chain = answer.GetChain()
		return err
	})
	own, err := certs.NewIdentity(chain, key)
	must(t, err)
	certificate := own.TLSCertificate()
	client.Certificate = &certificate
	return client
}

// bomb answers the question what its Envoy runs with data that unpacks to half a gigabyte.
func (in *installation) bomb(t *testing.T) {
	client := in.hostileEdge(t)
	conn, err := client.Control()
	must(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reportv1.NewReportClient(conn).Edge(ctx)
	must(t, err)
	must(t, stream.Send(&reportv1.EdgeReport{Form: "Process"}))
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	must(t, err)
	node := client.Certificate.Leaf.Subject.CommonName
	must(
		t,
		ads.Send(
			&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: model.NodeID(node)}, TypeUrl: outsider.ClusterType},
		),
	)
	bomb := packed(t, 512<<20)
	go func() {
		for {
			orders, err := stream.Recv()
			if err != nil {
				return
			}
			number := orders.GetQuestion().GetNumber()
			for part := range chunks(bomb, 16<<10) {
				if stream.Send(&reportv1.EdgeReport{Answer: &reportv1.Answer{Number: number, Dump: part}}) != nil {
					return
				}
			}
			_ = stream.Send(&reportv1.EdgeReport{Answer: &reportv1.Answer{Number: number, Last: true}})
		}
	}()
	attack(
		t,
		"an edge answers fairlead config dump with 0.5 MiB that decompress to 512 MiB",
		"pkg/diagnose/collect: 8 MiB for an edge (without it: TestACompressionBombOfAnEdgeIsRejected)",
		func(t *testing.T) {
			eventually(t, func(ctx context.Context) error {
				cmd, err := in.Command(ctx, "config", "dump", node, "--diff", in.Inspection())
				if err != nil {
					return err
				}
				out, err := cmd.CombinedOutput()
				if err == nil {
					return fmt.Errorf("it took the bomb: %.200s", out)
				}
				if !strings.Contains(string(out), "do not trust the node") {
					return fmt.Errorf("got %.300s", out)
				}
				usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
				if !ok || usage.Maxrss > 256<<10 {
					return fmt.Errorf("it took %d KiB of memory", usage.Maxrss)
				}
				measured("bomb_cli_mib", float64(usage.Maxrss)/1024)
				return nil
			})
		},
		nil,
	)
}

// exchange writes bytes to an address and returns the answer up to the end of the connection, which the other side must
// close.
func exchange(t *testing.T, from *netns.Namespace, to netip.AddrPort, data []byte) []byte {
	t.Helper()
	conn, err := from.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = conn.Write(data) // the connection may have been closed by then
	answer, err := io.ReadAll(conn)
	if isTimeout(err) {
		t.Errorf("%s does not close a connection that says %.40q", to, data)
	}
	return answer
}

// headers sends malformed PROXY headers to both ports, and a valid one to a port that expects none.
func (in *installation) headers(t *testing.T, xdsServer, public port) {
	v2 := func(kind, family byte, length int, rest []byte) []byte {
		return append(append(append([]byte{}, proxyproto.SIGV2...), kind, family, byte(length>>8), byte(length)), rest...)
	}
	odd := [][]byte{
		proxyproto.SIGV2, v2(0x21, 0x11, 12, nil), v2(0x21, 0x11, 65535, make([]byte, 65535)), v2(0x2f, 0xff, 0, nil), v2(
			0x21, 0x31, 216, make([]byte, 216)),
		[]byte(
			"PROXY TCP4 999.1.1.1 1.1.1.1 1 2\r\n",
		), []byte("PROXY " + strings.Repeat("x", 10_000)), []byte("PROXY TCP6 ::1 ::1 0 99999\r\n"), []byte("PROXY UNKNOWN"),
	}
	attack(
		t,
		"an outsider sends malformed PROXY headers to an xds-server and to the public port",
		"both close the connection (FuzzHeader of pkg/controlchannel)",
		func(t *testing.T) {
			var all sync.WaitGroup
			for _, data := range odd {
				all.Go(func() {
					// an alert of TLS has 7 bytes
					if answer := exchange(t, in.Network.Management, xdsServer.address, data); len(answer) > 7 {
						t.Errorf("%.40q is answered with %d bytes", data, len(answer))
					}
				})
				all.Go(func() {
					if answer := exchange(t, in.Network.Workload, public.address, data); len(answer) > 7 {
						t.Errorf("%.40q is answered with %d bytes on the public port", data, len(answer))
					}
				})
			}
			all.Wait()
		},
		nil,
	)
	forged := v2(0x21, 0x11, 12, []byte{203, 0, 113, 7, 192, 0, 2, 1, 0x30, 0x39, 0x01, 0xbb})
	attack(
		t,
		"an outsider claims another address with a forged PROXY header on the public port",
		"gateways read no PROXY header",
		func(t *testing.T) {
			if ok, err := openAfter(t, in.Network.Workload, public.address, forged); ok {
				t.Errorf("TLS goes on after it: %v", err)
			}
		},
		func(t *testing.T) {
			if ok, err := openAfter(t, in.Network.Management, xdsServer.address, forged); !ok {
				t.Errorf("a reader of such headers rejects it: %v", err)
			}
		},
	)
}

// openAfter writes bytes, and reports whether TLS for the control channel works after them.
func openAfter(t *testing.T, from *netns.Namespace, to netip.AddrPort, first []byte) (bool, error) {
	t.Helper()
	raw, err := from.DialContext(t.Context(), "tcp", to.String())
	must(t, err)
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(patience))
	_, err = raw.Write(first)
	must(t, err)
	// an attacker verifies nothing
	config := &tls.Config{InsecureSkipVerify: true, ServerName: world.Domain.Control(), NextProtos: []string{"h2"}}
	err = tls.Client(raw, config).HandshakeContext(t.Context())
	return err == nil, err
}

// garbage sends calls and claims that our programs never send.
func (in *installation) garbage(t *testing.T, public port) {
	anonymous := outsider.Outsider{
		From:    in.Network.Workload,
		Address: public.address.String(),
		Domain:  world.Domain,
		Roots:   in.Roots(t),
	}
	attack(
		t,
		"a machine without a token sends boot reports with arbitrary texts",
		"the token is checked before anything is read (FuzzBoot of pkg/report)",
		func(t *testing.T) {
			conn, err := anonymous.Control()
			must(t, err)
			defer func() { _ = conn.Close() }()
			for _, text := range []string{"", "\x1b[2J\x00", strings.Repeat("{", 60_000), "\n\nlevel=error msg=forged"} {
				report := &reportv1.BootReport{
					Step:    strings.ToValidUTF8(text, ""),
					Message: strings.ToValidUTF8(text, ""),
					Tail:    strings.ToValidUTF8(text, ""),
				}
				if _, err := enrolv1.NewEnrolmentClient(conn).ReportBoot(t.Context(), &enrolv1.ReportBootRequest{Token: "flr1." +
					strings.ToValidUTF8(text, ""), Report: report}); err == nil {
					t.Errorf("the report with %.20q was taken", text)
				}
			}
		},
		nil,
	)
	hostile := in.hostileEdge(t)
	hostile.Address = public.address.String()
	attack(
		t,
		"an edge puts JSON into its claim to forge records in the gateway's log of tunnels",
		"the claim must be that of the certificate, byte for byte (FuzzParseEvent of pkg/tunnels)",
		func(t *testing.T) {
			node, id := "CN="+hostile.Certificate.Leaf.Subject.CommonName, world.Domain.TunnelID(in.idOf(t, in.tenant))
			victim := world.Domain.TunnelID(in.idOf(t, in.victim))
			for _, claim := range []outsider.Claim{
				{Node: node + `","cluster_id":"` + victim, ID: id},
				{Node: node, ID: id + `","cluster_id":"` + victim},
				{Node: node, ID: strings.ToUpper(id)},
				{Node: node + " ", ID: victim},
				{Node: node, ID: id + "." + victim},
				{Node: strings.Repeat("x", 8<<10), ID: id},
			} {
				code, err := hostile.Handshake(t.Context(), gatewayAt(in, public), claim)
				if err == nil && code < http.StatusBadRequest {
					t.Errorf("the claim %.80q %.80q is answered with %d", claim.Node, claim.ID, code)
				}
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the claim %.80q has no answer", claim.Node)
				}
			}
		},
		nil,
	)
}

// gatewayAt returns the name of the gateway with a port.
func gatewayAt(in *installation, p port) string {
	if p.in == in.Network.Gateways[0] {
		return "gateway-0"
	}
	return "gateway-1"
}
