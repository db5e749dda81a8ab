package security

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolv1 "github.com/fairlead/fairlead/pkg/enrol/v1"
	"github.com/fairlead/fairlead/test/outsider"
)

// certificates repeats one enrolment and one renewal, and counts the CertificateSigningRequests that are created for
// the tunnel.
func (c *control) certificates(t *testing.T) {
	before := c.requestsOf(t, c.leaves[0].is.ID)
	token := c.token(t)
	key, err := certs.NewKey()
	must(t, err)
	der, err := certs.NewCSR(key)
	must(t, err)
	var good, limited atomic.Int64
	note := func(all ...error) {
		for _, err := range all {
			switch status.Code(err) {
			case codes.OK:
				good.Add(1)
			case codes.ResourceExhausted:
				limited.Add(1)
			default:
			}
		}
	}
	begin := time.Now()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			note(c.repeat(t.Context(), c.anonymous(), func(ctx context.Context, service enrolv1.EnrolmentClient) error {
				_, err := service.EnrolEdge(ctx, &enrolv1.EnrolEdgeRequest{Token: token, Csr: der, Host: "tenant"})
				return err
			})...)
			note(c.repeat(t.Context(), c.leaves[0].Outsider, func(ctx context.Context, service enrolv1.EnrolmentClient) error {
				_, err := service.Renew(ctx, &enrolv1.RenewRequest{Csr: der})
				return err
			})...)
		})
	}
	all.Wait()
	c.unharmed(t)
	made := c.requestsOf(t, c.leaves[0].is.ID) - before
	measured("control_csrs_made", float64(made))
	// 64 by the token, one more every 250 ms, and 30 by the leaf, on each of the two xds-servers.
	if most := 2 * (64 + 30 + int(time.Since(begin)/(250*time.Millisecond)) + 2); made > most || limited.Load() == 0 {
		t.Errorf("%d requests were made of 400 attempts, want %d at most; %d were signed, %d limited",
			made, most, good.Load(), limited.Load())
	}
}

// repeat makes one call repeatedly on one connection, and returns the result of each.
func (c *control) repeat(
	ctx context.Context, who outsider.Outsider, call func(context.Context, enrolv1.EnrolmentClient) error,
) (results []error) {
	ctx, cancel := context.WithTimeout(ctx, 4*controlPatience)
	defer cancel()
	conn, err := who.Control()
	if err != nil {
		return []error{err}
	}
	defer func() { _ = conn.Close() }()
	for range 25 {
		results = append(results, call(ctx, enrolv1.NewEnrolmentClient(conn)))
	}
	return results
}

// requestsOf counts the CertificateSigningRequests of a tunnel.
func (c *control) requestsOf(t *testing.T, id string) (n int) {
	t.Helper()
	var all certificatesv1.CertificateSigningRequestList
	must(t, c.Management.Client.List(t.Context(), &all))
	for i := range all.Items {
		if all.Items[i].Annotations[v1alpha1.RequestTunnelIDAnnotation] == id {
			n++
		}
	}
	return n
}

// claims sends claims that the certificate does not support.
func (c *control) claims(t *testing.T) {
	l := c.leaves[0]
	many := map[string]string{}
	for i := range 5000 {
		many[fmt.Sprint(i)] = ""
	}
	type request = discoveryv3.DeltaDiscoveryRequest
	named := func(id string) *request { return &request{Node: &corev3.Node{Id: id}, TypeUrl: resourcev3.ClusterType} }
	long := strings.Repeat("x", 100<<10)
	for name, tc := range map[string]struct {
		in   *request
		want codes.Code
	}{
		"the victim's node id": {named(c.is.NodeID()), codes.PermissionDenied},
		"a gateway's node id":  {named("CN=gateway-0"), codes.PermissionDenied},
		"a long node id":       {named(long), codes.PermissionDenied},
		"secrets":              {l.request(resourcev3.SecretType), codes.InvalidArgument},
		"a long type":          {l.request(long), codes.InvalidArgument},
		"the victim's name": {&request{
			Node: &corev3.Node{Id: l.is.NodeID()}, TypeUrl: resourcev3.ClusterType,
			ResourceNamesSubscribe: []string{"apiserver_" + c.is.Node},
		}, codes.InvalidArgument},
		"thousands of names": {&request{
			Node: &corev3.Node{Id: l.is.NodeID()}, TypeUrl: resourcev3.ClusterType, InitialResourceVersions: many,
		}, codes.InvalidArgument},
	} {
		_, err := with(
			l.Outsider,
			t.Context(),
			func(ctx context.Context, conn *grpc.ClientConn) (*discoveryv3.DeltaDiscoveryResponse, error) {
				stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
				if err != nil {
					return nil, err
				}
				_ = stream.Send(tc.in)
				return stream.Recv()
			},
		)
		if status.Code(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	c.unharmed(t)
}
