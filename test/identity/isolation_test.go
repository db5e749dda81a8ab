package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/traffic"
	"github.com/fairlead/fairlead/test/world"
)

// isolation proves that a certificate grants access only for its own subject.
func (d *doors) isolation(t *testing.T) {
	bonn, kiev := d.Member(t, "bonn", nil), d.Member(t, "kiev", nil)
	own := world.Steal(t, d.Edge(t, lab.EdgeSpec{Name: "edge-bonn"}, bonn))
	other := world.Steal(t, d.Edge(t, lab.EdgeSpec{Name: "edge-kiev"}, kiev))
	gateway := world.Steal(t, d.Gateways[0])
	forged := forgery(t, own.Subject)

	that(t, "an edge receives only its own configuration", func(t *testing.T) {
		names, err := d.Outsider(own).Fetch(t.Context(), own.Subject.NodeID())
		must(t, err)
		for _, name := range names {
			if !slices.Contains(
				[]string{"apiserver_" + own.Subject.Node, "gateway-0_" + own.Subject.Node, "gateway-1_" + own.Subject.Node}, name,
			) {
				t.Errorf("it gets %s", name)
			}
		}
		if len(names) != 3 {
			t.Errorf("it gets %q", names)
		}
	})
	for name, attack := range map[string]struct {
		with *tls.Certificate
		node string
	}{
		"an edge receives no other edge's configuration":             {&own.Certificate, other.Subject.NodeID()},
		"an edge receives no configuration of a gateway":             {&own.Certificate, "CN=gateway-0"},
		"an edge that sends no node ID receives no configuration":    {&own.Certificate, ""},
		"a gateway's leaf receives no configuration of an edge":      {&gateway.Certificate, own.Subject.NodeID()},
		"a gateway's leaf receives nothing through the public port":  {&gateway.Certificate, "CN=gateway-0"},
		"a leaf of another CA with an edge's names receives nothing": {&forged, own.Subject.NodeID()},
		"a client without a certificate receives no configuration":   {nil, own.Subject.NodeID()},
	} {
		that(t, name, func(t *testing.T) {
			client := outsider.Outsider{From: d.Network.Workload, Domain: domain, Roots: own.Roots, Certificate: attack.with}
			names, err := client.Fetch(t.Context(), attack.node)
			if len(names) > 0 || !refused(err) {
				t.Errorf("%q, error %v, want a refusal", names, err)
			}
		})
	}
	that(t, "an edge's certificate cannot report as a gateway or watch reports", func(t *testing.T) {
		d.noReports(t, own)
	})
	that(t, "a gateway rejects an edge that claims the tunnel of another edge", func(t *testing.T) {
		for name, claim := range map[string]outsider.Claim{
			"another tunnel ID":        {Node: own.Subject.NodeID(), ID: domain.TunnelID(other.Subject.ID)},
			"another node ID":          {Node: other.Subject.NodeID(), ID: domain.TunnelID(own.Subject.ID)},
			"both IDs of another edge": {Node: other.Subject.NodeID(), ID: domain.TunnelID(other.Subject.ID)},
		} {
			if code, err := d.Outsider(own).Handshake(t.Context(), "gateway-0", claim); err == nil &&
				code != http.StatusForbidden {
				t.Errorf("%s: the gateway answers %d", name, code)
			}
		}
		claim := outsider.Claim{Node: own.Subject.NodeID(), ID: domain.TunnelID(own.Subject.ID)}
		if err := d.Outsider(own).Open(t.Context(), "gateway-0", claim); err != nil {
			t.Errorf("its own ids: %v: the refusals above prove nothing", err)
		}
	})
	must(t, errors.Join(bonn.Works(t.Context()), kiev.Works(t.Context())))
}

// forgery returns a certificate with a subject's names, of an untrusted CA.
func forgery(t *testing.T, subject model.Subject) tls.Certificate {
	t.Helper()
	ca, err := certs.NewCA("fairlead", time.Now(), time.Hour)
	must(t, err)
	identity, err := outsider.Forge(ca, domain, subject, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	must(t, err)
	return identity.TLSCertificate()
}

// refused reports whether an error is a rejection by the control channel, or the end of a connection because of its
// certificate.
func refused(err error) bool {
	return slices.Contains(
		[]codes.Code{codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unavailable},
		status.Code(err),
	)
}

// noReports tries methods that only gateways and controllers may call, with an edge's certificate.
func (d *doors) noReports(t *testing.T, own outsider.Stolen) {
	for name, call := range map[string]func(context.Context, reportv1.ReportClient) error{
		"Gateway": func(ctx context.Context, c reportv1.ReportClient) error {
			stream, err := c.Gateway(ctx)
			if err != nil {
				return err
			}
			return sendAndReceive[reportv1.GatewayReport](stream, &reportv1.GatewayReport{Snapshot: true}, stream)
		},
		"Watch": func(ctx context.Context, c reportv1.ReportClient) error {
			stream, err := c.Watch(ctx, &reportv1.WatchRequest{})
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	} {
		conn, err := d.Outsider(own).Control()
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), traffic.RequestTimeout)
		if err := call(ctx, reportv1.NewReportClient(conn)); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s is answered with %v, want PermissionDenied", name, err)
		}
		cancel()
		_ = conn.Close()
	}
}

// sendAndReceive sends a message on a stream and returns the error of the answer.
func sendAndReceive[M any](stream interface{ Send(*M) error }, message *M, receiver grpc.ClientStream) error {
	if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) {
		return err
	} // EOF: the stream ended before the message was sent
	return receiver.RecvMsg(&reportv1.GatewayOrders{})
}
