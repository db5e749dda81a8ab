package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/collect"
	"github.com/fairlead/fairlead/pkg/diagnose/summary"
	"github.com/fairlead/fairlead/pkg/diagnose/web"
)

// pageConfig is the configuration of the status page.
type pageConfig struct {
	listen           string // "0": no page
	certificate, key string // files of the serving certificate; required unless the page listens on loopback
}

func (c *pageConfig) addTo(set *pflag.FlagSet) {
	set.StringVar(
		&c.listen,
		"page-listen",
		"0",
		"address of the status page; 0 for none. On loopback (127.0.0.1:9448), for kubectl port-forward, it is plain HTTP "+
			"without a token; on any other address it requires TLS and bearer tokens",
	)
	set.StringVar(
		&c.certificate, "page-certificate", "", "file with the page's serving certificate, PEM; reloaded when it changes",
	)
	set.StringVar(&c.key, "page-key", "", "file with the key of --page-certificate")
}

func (c *pageConfig) complete() error {
	switch given := c.certificate != "" || c.key != ""; {
	case c.listen == "0" && given:
		return errors.New("--page-certificate and --page-key need a status page: set --page-listen, or remove them")
	case c.listen == "0":
		return nil
	case web.Loopback(c.listen) && given:
		return errors.New(
			"--page-listen is on loopback, where the page is plain HTTP: remove --page-certificate and --page-key",
		)
	case !web.Loopback(c.listen) && (c.certificate == "" || c.key == ""):
		return fmt.Errorf(
			"--page-listen %s is not on loopback: give --page-certificate and --page-key, or listen on 127.0.0.1 and reach "+
				"the page by kubectl port-forward",
			c.listen,
		)
	}
	return nil
}

// liveTime bounds the wait for the answers of gateways.
const liveTime = 5 * time.Second

// statusPage is the page with its listener and its sources.
type statusPage struct {
	*web.Page
	listener net.Listener
	files    *certwatcher.CertWatcher // nil: plain HTTP
	own      *collect.Servers         // this server's inspection; nil: turned off
}

// live returns the round-trip times of the tunnels of the gateways that report to this server, or nil if there is no
// answer in time.
func (p *statusPage) live(ctx context.Context, ids ...string) *summary.Live {
	ctx, cancel := context.WithTimeout(ctx, liveTime)
	defer cancel()
	fleet, err := p.own.Fleet(ctx, ids...)
	if err != nil {
		return nil // rows then show the state of the objects
	}
	return summary.LiveOf(fleet)
}

// newPage opens the listener of the status page. It returns nil if the page is turned off.
func (s *server) newPage() (*statusPage, error) {
	if s.page.listen == "0" {
		return nil, nil //nolint:nilnil // no page is not an error here
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clusterv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering types: %w", err)
	}
	objects, err := client.New(s.rest, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("creating client of the status page: %w", err)
	}
	// By design this server reads no Secret and reaches no other xds-server. The page reports what only these have as
	// unknown. What the controller has gathered from all xds-servers is in the Tunnel.
	checker := &check.Checker{Objects: objects, Installation: s.namespace}
	p := &statusPage{}
	config := web.Config{Domain: s.inst.Domain, Objects: objects, Check: checker.Check, Log: s.log}
	if s.inspect.listen != "0" {
		if p.own, err = collect.Connect(context.Background(),
			collect.Options{Addresses: []string{s.inspect.listen}}); err != nil {
			return nil, err
		}
		config.Live = p.live
	}
	if !web.Loopback(s.page.listen) {
		config.Reviewer = web.NewReviews(s.client)
		if p.files, err = certwatcher.New(s.page.certificate, s.page.key); err != nil {
			return nil, fmt.Errorf("reading --page-certificate and --page-key: %w", err)
		}
	}
	if p.Page, err = web.New(config); err != nil {
		return nil, err
	}
	if p.listener, err = net.Listen("tcp", s.page.listen); err != nil {
		return nil, fmt.Errorf("listening for the status page: %w", err)
	}
	return p, nil
}

// servePage serves until ctx ends. An error is logged and ends only the page: edges need the server, but not the page.
func (s *server) servePage(ctx context.Context, p *statusPage) {
	if p == nil {
		return
	}
	s.log.Info("status page is served", "address", p.listener.Addr().String(), slog.Bool("tokens", p.files != nil))
	parts, ctx := errgroup.WithContext(ctx)
	var secure *tls.Config
	if p.files != nil {
		secure = &tls.Config{
			GetCertificate: p.files.GetCertificate,
			MinVersion:     tls.VersionTLS12,
			NextProtos:     []string{"h2", "http/1.1"},
		}
	}
	parts.Go(func() error { return p.Watch(ctx, s.rest) })
	parts.Go(func() error { return p.Serve(ctx, p.listener, secure) })
	if p.files != nil {
		parts.Go(func() error { return p.files.Start(ctx) })
	}
	err := parts.Wait()
	if p.own != nil {
		err = errors.Join(err, p.own.Close())
	}
	if err != nil {
		s.log.Error("status page ended", "error", err)
	}
}
