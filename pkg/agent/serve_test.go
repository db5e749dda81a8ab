package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/rollout"
	"github.com/fairlead/fairlead/pkg/xds"
)

// serve runs the control channel until the test ends, or until the returned function is called.
func (c *control) serve() (stop func()) {
	c.t.Helper()
	log := slog.New(slog.DiscardHandler)
	installation := model.Installation{
		Domain:   domain,
		Public:   cmp.Or(c.public, c.bind.Public),
		Control:  c.address,
		Gateways: []model.Gateway{{Name: name}},
		Lanes:    c.lanes,
	}
	if len(c.peers) > 0 {
		installation.Gateways[0].Peer = c.bind.Public
	}
	installation.Gateways = append(installation.Gateways, c.peers...)
	server := xds.NewServer(installation, log)
	c.set(func() {
		server.Ended(maps.Clone(c.gone))
		server.Replace(slices.Collect(maps.Values(c.clusters)))
		if c.lanes > 0 { // a controller knows the size of the fleet
			profile := rollout.SettingsOf(installation, envoy.Current.String()).Profile()
			server.SetRollout(&rollout.Record{Current: profile, Size: 1})
		}
		c.server = server
	})
	hub := reporthub.New(domain, server, log)
	c.set(func() { c.hub = hub })
	front := controlchannel.New(controlchannel.Config{
		Domain: domain, TLS: certs.ServerTLS(c, certs.Bundle(c.ca.CertPEM()), 24*time.Hour), Log: log,
		Anonymous: []string{enrolv1.Enrolment_EnrolEdge_FullMethodName, enrolv1.Enrolment_EnrolGateway_FullMethodName},
		Expired:   []string{enrolv1.Enrolment_Renew_FullMethodName},
		Closing:   func() { server.Close(); hub.Close() },
	})
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(front, server)
	enrolv1.RegisterEnrolmentServer(
		front,
		enrolserver.New(enrolserver.Config{
			Domain: domain, Tokens: c, Pods: c, Issuer: c, Renewals: c, Trust: c.ca.CertPEM, Log: log,
		}),
	)
	reportv1.RegisterReportServer(front, &recording{Hub: hub, to: c.edges})
	listener, err := net.Listen("tcp", c.address.String())
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- front.Serve(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(stop)
	return stop
}

// recorder holds the newest report of each edge's stream.
type recorder struct {
	mu      sync.Mutex
	reports []*reportv1.EdgeReport
}

// last returns the newest report.
func (r *recorder) last() (*reportv1.EdgeReport, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reports) == 0 {
		return nil, errors.New("no edge has reported")
	}
	return r.reports[len(r.reports)-1], nil
}

// recording is a hub that records the reports of edges.
type recording struct {
	*reporthub.Hub
	to *recorder
}

// Edge implements the service.
func (r *recording) Edge(stream reportv1.Report_EdgeServer) error {
	return r.Hub.Edge(&recordingStream{stream, r.to})
}

type recordingStream struct {
	reportv1.Report_EdgeServer
	to *recorder
}

// Recv implements the stream.
func (s *recordingStream) Recv() (*reportv1.EdgeReport, error) {
	report, err := s.Report_EdgeServer.Recv()
	if err == nil {
		s.to.mu.Lock()
		s.to.reports = append(s.to.reports, report)
		s.to.mu.Unlock()
	}
	return report, err
}

// served returns the serial number of the leaf that the gateway's public port serves to an edge.
func (c *control) served() (string, error) {
	roots, err := certs.Bundle(c.ca.CertPEM()).Roots()
	if err != nil {
		return "", err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{
		ServerName: domain.GatewayReplica(
			name,
		), RootCAs: roots, Certificates: []tls.Certificate{c.fresh(edgeSubject).TLSCertificate()},
	}}
	conn, err := dialer.DialContext(c.t.Context(), "tcp", c.bind.Public.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Text(16), nil
}
