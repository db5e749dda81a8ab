package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/metrics"
	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/controlchannel"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/pkg/model"
	reporthub "github.com/fairlead/fairlead/pkg/report/hub"
)

// figures holds the metrics of the results of requests, which no package counts itself.
type figures struct {
	metrics.Set
	enrolled, signed, booted *prometheus.CounterVec
	enrolling, signing       *prometheus.HistogramVec
}

// Requests for certificates, and their results.
const (
	enrolEdge, enrolGateway, renewal = "edge", "gateway", "renewal"

	issued, refused, limited, unavailable = "issued", "refused", "limited", "unavailable"
)

func newFigures() *figures {
	f := &figures{}
	f.enrolled, f.enrolling = f.Counter("fairlead_enrol_requests_total"), f.Histogram("fairlead_enrol_seconds")
	f.signed, f.signing = f.Counter("fairlead_signing_requests_total"), f.Histogram("fairlead_signing_seconds")
	f.booted = f.Counter("fairlead_boot_reports_total")
	for _, request := range []string{enrolEdge, enrolGateway, renewal} {
		for _, result := range []string{issued, refused, limited, unavailable} {
			f.enrolled.WithLabelValues(request, result)
		}
	}
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress, model.RoleGateway, model.RoleControl} {
		for _, result := range []string{"signed", "denied", "unanswered"} {
			f.signed.WithLabelValues(string(role), result)
		}
	}
	for _, state := range []string{"running", "succeeded", "failed"} {
		f.booted.WithLabelValues(state, "taken")
	}
	return f
}

// registry returns a registry with all metrics of this program.
func (s *server) registry(c *controlchannel.Channel, hub *reporthub.Hub) *prometheus.Registry {
	r := metrics.NewRegistry(metrics.XDSServer)
	own := &metrics.Set{}
	own.Observe(
		s.certificates, "fairlead_server_leaf_expiry_timestamp_seconds", "fairlead_server_ca_expiry_timestamp_seconds",
	)
	r.MustRegister(own, s.figures, s.ads.Metrics(), s.kube.Metrics(), c.Metrics(), hub.Metrics())
	if s.perCluster {
		r.MustRegister(s.ads.ClusterMetrics(), hub.ClusterMetrics(s.ads.Keys))
	}
	return r
}

func (s *server) certificates(emit metrics.Emit) {
	if identity, err := s.store.Identity(); err == nil {
		emit("fairlead_server_leaf_expiry_timestamp_seconds", float64(identity.NotAfter().Unix()))
	}
	cas, err := certs.ParseCAs(s.kube.TrustBundle())
	if err != nil || len(cas) == 0 {
		return // not known yet
	}
	first := cas[0].NotAfter()
	for _, ca := range cas {
		if ca.NotAfter().Before(first) {
			first = ca.NotAfter()
		}
	}
	emit("fairlead_server_ca_expiry_timestamp_seconds", float64(first.Unix()))
}

// counted counts the results of requests to a service.
type counted struct {
	enrolv1.EnrolmentServer
	*figures
}

// EnrolEdge implements the enrolment service.
func (c counted) EnrolEdge(ctx context.Context, r *enrolv1.EnrolEdgeRequest) (*enrolv1.Certificate, error) {
	return c.count(
		ctx, enrolEdge,
		func(ctx context.Context) (*enrolv1.Certificate, error) { return c.EnrolmentServer.EnrolEdge(ctx, r) },
	)
}

// EnrolGateway implements the enrolment service.
func (c counted) EnrolGateway(ctx context.Context, r *enrolv1.EnrolGatewayRequest) (*enrolv1.Certificate, error) {
	return c.count(
		ctx, enrolGateway,
		func(ctx context.Context) (*enrolv1.Certificate, error) { return c.EnrolmentServer.EnrolGateway(ctx, r) },
	)
}

// Renew implements the enrolment service.
func (c counted) Renew(ctx context.Context, r *enrolv1.RenewRequest) (*enrolv1.Certificate, error) {
	return c.count(
		ctx, renewal, func(ctx context.Context) (*enrolv1.Certificate, error) { return c.EnrolmentServer.Renew(ctx, r) },
	)
}

// ReportBoot implements the enrolment service.
func (c counted) ReportBoot(ctx context.Context, r *enrolv1.ReportBootRequest) (*enrolv1.ReportBootResponse, error) {
	answer, err := c.EnrolmentServer.ReportBoot(ctx, r)
	result := "taken"
	if err != nil {
		result = outcome(err)
	}
	// Labels use only known words of a report, because its content comes from a machine.
	state := strings.ToLower(strings.TrimPrefix(r.GetReport().GetState().String(), "BOOT_STATE_"))
	if state != "running" && state != "succeeded" && state != "failed" {
		state = "unknown"
	}
	c.booted.WithLabelValues(state, result).Inc()
	return answer, err
}

func (c counted) count(
	ctx context.Context, request string, do func(context.Context) (*enrolv1.Certificate, error),
) (*enrolv1.Certificate, error) {
	began := time.Now()
	certificate, err := do(ctx)
	c.enrolling.WithLabelValues(request).Observe(time.Since(began).Seconds())
	c.enrolled.WithLabelValues(request, outcome(err)).Inc()
	return certificate, err
}

// outcome returns the result of a request in one word.
func outcome(err error) string {
	switch status.Code(err) {
	case codes.OK:
		return issued
	case codes.ResourceExhausted:
		return limited
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound:
		return refused
	}
	return unavailable
}

// countedIssuer counts the results of signing requests.
type countedIssuer struct {
	enrolserver.Issuer
	*figures
}

// Issue implements enrolserver.Issuer.
func (c countedIssuer) Issue(ctx context.Context, request enrolserver.IssueRequest) ([]byte, error) {
	// The span lasts from creating the CertificateSigningRequest to the controller's signature.
	ctx, span := traces.Begin(ctx, "sign", "role", string(request.Subject.Role), "node", request.Subject.Node)
	began := time.Now()
	chain, err := c.Issuer.Issue(ctx, request)
	traces.End(span, err)
	result := "signed"
	switch {
	case errors.Is(err, enrolserver.ErrDenied):
		result = "denied"
	case err != nil:
		result = "unanswered"
	}
	role := string(request.Subject.Role)
	c.signing.WithLabelValues(role).Observe(time.Since(began).Seconds())
	c.signed.WithLabelValues(role, result).Inc()
	return chain, err
}
