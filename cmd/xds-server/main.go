// Command xds-server serves gateways and edges: certificates with pkg/enrol/server, configuration with pkg/xds, and
// reports with pkg/report. It reads Clusters and Tunnels, holds no CA key and reads no Secret.
package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead/fairlead/internal/command"
	"github.com/fairlead/fairlead/internal/heartbeat"
	"github.com/fairlead/fairlead/internal/informers"
	"github.com/fairlead/fairlead/internal/kubelog"
	"github.com/fairlead/fairlead/internal/memory"
	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/enrol/csr"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/source"
	"github.com/fairlead/fairlead/pkg/xds"
)

// grace is how long an expired leaf can still be renewed with its key, so that edges recover from a long outage without
// manual work.
const grace = 90 * 24 * time.Hour

func main() { command.Main(run) }

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return command.Run(ctx, rootCommand(), args, stdout, stderr)
}

// server is the assembled program.
type server struct {
	config
	log      *slog.Logger
	client   kubernetes.Interface
	store    *certs.Store
	ads      *xds.Server
	kube     *source.Kube
	requests enrolserver.Issuer
	figures  *figures
	refusals collect.Refusals // of unknown machines
	beats    *heartbeat.Monitor
	memory   uint64 // that this process may use, in bytes; 0: all
}

func newServer(c config, log *slog.Logger) (*server, error) {
	kubelog.SetLogger(log)
	informers.ReadByList()
	client, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("creating client of the management cluster: %w", err)
	}
	store, err := certs.OpenStore(c.stateDir)
	if err != nil {
		return nil, err
	}
	ads, beats := xds.NewServer(c.inst, log), heartbeat.New()
	kube, err := source.NewKube(c.rest, source.KubeConfig{
		Domain: c.inst.Domain, Namespace: c.namespace, GatewaySet: c.gatewaySet, ReplicaAddress: c.inst.ReplicaAddress,
		Publisher: ads, Log: log, Beats: beats,
	})
	if err != nil {
		return nil, err
	}
	figures := newFigures()
	return &server{
		config:   c,
		log:      log,
		client:   client,
		store:    store,
		ads:      ads,
		kube:     kube,
		requests: countedIssuer{csr.Requests{Client: client}, figures},
		figures:  figures,
		beats:    beats,
		memory:   memory.Bound(0, log),
	}, nil
}

// run runs all parts until ctx ends or one of them fails.
func (s *server) run(ctx context.Context) error {
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("listening for gateways and edges: %w", err)
	}
	health, err := s.listenHealth()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	statusPage, err := s.newPage()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	rotation := certs.Rotation{
		Store: s.store, Renew: csr.Control(s.requests, s.kube.TrustBundle), Log: s.log,
		// No client connects to a server whose leaf is of a replaced CA, if the CA was replaced at once instead of
		// being rotated.
		Check: func(own certs.Identity) error { return certs.Bundle(s.kube.TrustBundle()).Verify(own) },
	}
	metricsListener, err := metrics.Listen(s.metricsListen)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	inspection, err := collect.Listen(s.inspect.listen)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	c, hub := s.channel()
	registry := s.registry(c, hub)
	s.log.Info(
		"xds-server starts", version.Attr(), "tunnel_domain", string(s.inst.Domain), "address", listener.Addr().String(),
	)
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return s.kube.Run(ctx) })
	parts.Go(func() error { return rotation.Run(ctx) })
	parts.Go(func() error { return c.Serve(ctx, listener) })
	parts.Go(func() error { return s.serveHealth(ctx, health) })
	parts.Go(func() error { return s.beats.Run(ctx, s.probes(hub)) })
	parts.Go(func() error { return metrics.Serve(ctx, metricsListener, registry) })
	parts.Go(func() error { return s.serveInspection(ctx, inspection, hub) })
	parts.Go(func() error { return s.announce(ctx, hub) })
	parts.Go(func() error { return s.boundEdges(ctx, c) })
	parts.Go(func() error { s.servePage(ctx, statusPage); return nil })
	return parts.Wait()
}

// channel returns the control channel with all of its services.
func (s *server) channel() (*controlchannel.Channel, *reporthub.Hub) {
	hub := reporthub.New(s.inst.Domain, s.ads, s.log)
	c := controlchannel.New(controlchannel.Config{
		Domain: s.inst.Domain,
		// The trust bundle is the current one of the installation, not the one that was issued with the leaf.
		TLS: certs.ServerTLS(s.store, trust{s.kube}, grace),
		Anonymous: []string{
			enrolv1.Enrolment_EnrolEdge_FullMethodName, enrolv1.Enrolment_EnrolGateway_FullMethodName,
			enrolv1.Enrolment_ReportBoot_FullMethodName,
		},
		Expired: []string{enrolv1.Enrolment_Renew_FullMethodName},
		Inside: []string{
			enrolv1.Enrolment_EnrolGateway_FullMethodName,
			reportv1.Report_Gateway_FullMethodName, reportv1.Report_Peers_FullMethodName, reportv1.Report_Watch_FullMethodName,
		},
		EdgeConnections: edgeConnections(s.memory, 0),
		Closing:         func() { s.ads.Close(); hub.Close() },
		Refused:         s.noteRefusal(collect.AboutHandshake),
		Calls: traces.Calls(
			traces.Untrusted, enrolv1.Enrolment_EnrolEdge_FullMethodName, enrolv1.Enrolment_EnrolGateway_FullMethodName,
			enrolv1.Enrolment_Renew_FullMethodName, enrolv1.Enrolment_ReportBoot_FullMethodName,
			reportv1.Report_Peers_FullMethodName,
		),
		Log: s.log,
	})
	s.ads.Register(c)
	reportv1.RegisterReportServer(c, hub)
	enrolv1.RegisterEnrolmentServer(c, counted{enrolserver.New(enrolserver.Config{
		Domain:   s.inst.Domain,
		Tokens:   s.kube,
		Reviewer: csr.Reviews{Client: s.client, User: s.gatewayUser},
		Pods:     s.kube,
		Issuer:   csr.NewBreaker(s.requests, s.log),
		Renewals: s.ads,
		Trust:    s.kube.TrustBundle,
		Log:      s.log,
		Boot:     &enrolserver.BootConfig{Tokens: s.kube, Boots: hub},
		Refused:  s.noteRefusal(collect.AboutEnrolment),
	}), s.figures})
	return c, hub
}

// trust reads the installation's trust bundle.
type trust struct{ kube *source.Kube }

// Roots implements certs.TrustSource.
func (t trust) Roots() (*x509.CertPool, error) { return certs.Bundle(t.kube.TrustBundle()).Roots() }
