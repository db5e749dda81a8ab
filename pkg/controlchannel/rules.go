package controlchannel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

// rules decide which calls a caller may make, and how often, before anything but the call's header is read.
type rules struct {
	anonymous, expired, inside map[string]bool

	rate, tunnelRate       limit.Rate
	calls                  *limit.Rates // by certificate, and by tunnel
	addressRate, otherRate limit.Rate
	addresses, others      *limit.Rates  // calls without an accepted certificate, and calls that need no valid one
	byNode, byTunnel       *limit.Slots  // running calls
	byInternal             *limit.Slots  // those of gateways and controllers, in place of byNode
	message                time.Duration // until the message of a unary call has arrived

	figures *figures
}

func newRules(config Config, b bounds) rules {
	return rules{
		anonymous: set(config.Anonymous), expired: set(config.Expired), inside: set(config.Inside),
		rate: b.calls, tunnelRate: b.tunnelCalls, calls: limit.NewRates(b.nodes),
		byNode: limit.NewSlots(math.MaxInt, b.nodeStreams), byTunnel: limit.NewSlots(math.MaxInt, b.tunnelStreams),
		byInternal: limit.NewSlots(math.MaxInt, b.internalStreams),
		message:    b.message,

		addressRate: b.addressCalls, addresses: limit.NewRates(b.addresses),
		otherRate: b.otherCalls, others: limit.NewRates(b.nodes),
	}
}

func set(names []string) map[string]bool {
	s := make(map[string]bool, len(names))
	for _, name := range names {
		s[name] = true
	}
	return s
}

// admit implements tap.ServerInHandle. It decides whether the caller may make a call. It does not return the error of
// a rejected call, which begin returns instead: gRPC does not cancel the context of a call that is rejected here, and
// would keep it until the deadline, which the caller has chosen.
func (r rules) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	c := callerOf(ctx)
	if c == nil {
		return nil, status.Error(codes.Internal, errNotOurs.Error())
	}
	err := r.check(c, info.FullMethodName)
	r.figures.called(info.FullMethodName, err)
	if err == nil {
		return ctx, nil
	}
	if c.expired || c.rejection != nil {
		c.disconnect()
	}
	return context.WithValue(ctx, rejectedKey{}, err), nil
}

// callerOf returns the caller of a call, or nil if its connection was not accepted by an acceptor.
func callerOf(ctx context.Context) *caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	c, _ := p.Addr.(*caller)
	return c
}

// check returns the error with which a call is rejected. A rejected call counts for a limit too.
func (r rules) check(c *caller, method string) error {
	refusal := r.refusal(c, method)
	if err := r.limit(c, refusal != nil || r.anonymous[method] || r.expired[method]); err != nil {
		return err
	}
	return refusal
}

// refusal returns an error for a call that the caller may not make.
func (r rules) refusal(c *caller, method string) error {
	switch {
	case c.rejection != nil:
		return c.rejection
	case c.public && r.inside[method]:
		return status.Error(
			codes.PermissionDenied,
			"this call is not allowed through the gateways' public port: use the xds-server's own address",
		)
	case !c.named && !r.anonymous[method]:
		return status.Error(codes.Unauthenticated, certs.ErrNoPeer.Error()+": enrol first")
	case c.expired && !r.expired[method]:
		return status.Error(codes.Unauthenticated, certs.ErrExpired.Error()+": renew it first")
	}
	return nil
}

// limit counts a call. Those that need no valid certificate, and those that are refused, have rates of their own: an
// edge that makes too many of the others can still renew. Beyond these rates the connection is closed as well.
func (r rules) limit(c *caller, others bool) error {
	if !c.named {
		if wait := r.addresses.Take(limit.Address(c.Addr), r.addressRate); wait > 0 {
			c.disconnect()
			return retry.Later("too many calls from one address", wait)
		}
		return nil
	}
	if others {
		if wait := r.others.Take(c.node, r.otherRate); wait > 0 {
			c.disconnect()
			return retry.Later("too many calls by one certificate", wait)
		}
		return nil
	}
	if wait := r.calls.Take(c.node, r.rate); wait > 0 {
		return retry.Later("too many calls by one certificate", wait)
	}
	if c.id == "" {
		return nil
	}
	if wait := r.calls.Take("tunnel "+c.id, r.tunnelRate); wait > 0 {
		return retry.Later("too many calls by the edges of one tunnel", wait)
	}
	return nil
}

// busyTime is the retry delay while too many calls are running.
const busyTime = 2 * time.Second

// rejectedKey is the context key of the error with which a call is rejected.
type rejectedKey struct{}

// begin counts a call whose message has not been read, and returns a function that uncounts it. It returns an error if
// the call is rejected.
func (r rules) begin(ctx context.Context) (end func(), err error) {
	if err, ok := ctx.Value(rejectedKey{}).(error); ok {
		return nil, err
	}
	c := callerOf(ctx)
	if c == nil || c.node == "" {
		return func() {}, nil // without a certificate, connections are few and have one call at a time
	}
	slots := r.byNode
	if c.class == internal {
		slots = r.byInternal
	}
	node := slots.Take(c.node)
	if node == nil {
		return nil, retry.Later("too many concurrent calls by one certificate", busyTime)
	}
	if c.id == "" {
		return node, nil
	}
	tunnel := r.byTunnel.Take(c.id)
	if tunnel == nil {
		node()
		return nil, retry.Later("too many concurrent calls by the edges of one tunnel", busyTime)
	}
	return func() { node(); tunnel() }, nil
}

// guard returns a service whose unary methods follow the rules before their message is read. gRPC calls interceptors of
// unary methods only after that.
func (r rules) guard(description *grpc.ServiceDesc) *grpc.ServiceDesc {
	guarded := *description
	guarded.Methods = slices.Clone(description.Methods)
	for i, method := range description.Methods {
		guarded.Methods[i].Handler = r.unary(method.Handler)
	}
	return &guarded
}

func (r rules) unary(handle grpc.MethodHandler) grpc.MethodHandler {
	return func(
		service any, ctx context.Context, read func(any) error, _ grpc.UnaryServerInterceptor,
	) (any, error) {
		end, err := r.begin(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		return handle(service, ctx, func(message any) error {
			if c := callerOf(ctx); c != nil {
				defer time.AfterFunc(r.message, c.disconnect).Stop()
			}
			return read(message)
		}, nil)
	}
}

// stream is the interceptor of streaming methods.
func (r rules) stream(
	service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	end, err := r.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	return handle(service, stream)
}

// unknown answers calls of methods that no service has, for which gRPC would not call the interceptor.
func unknown(any, grpc.ServerStream) error {
	return status.Error(codes.Unimplemented, "this server has no such method")
}

// identify completes a caller from its certificate. It returns the leaf if its chain is accepted, else nil.
func (d *acceptor) identify(c *caller, state tls.ConnectionState, now time.Time) *x509.Certificate {
	leaf, err := certs.Peer(state)
	if err != nil {
		return nil // no certificate
	}
	if err := d.verify(state); err != nil {
		c.rejection = rejection(leaf, err, now)
		return nil
	}
	subject, err := d.domain.ParseSubject(leaf.Subject.CommonName, leaf.DNSNames)
	if err != nil {
		c.rejection = status.Error(codes.PermissionDenied, err.Error())
		return nil
	}
	_, err = certs.VerifyNow(state, now)
	c.named, c.expired = true, err != nil
	c.node = subject.Node + " " + subject.ID // a node name is unique only within its tunnel
	switch subject.Role {
	case model.RoleEdge, model.RoleEgress:
		c.class, c.id = edges, subject.ID
	case model.RoleGateway, model.RoleController:
		c.class = internal
		if c.public { // a stolen certificate may be used from outside
			c.rejection = status.Errorf(
				codes.PermissionDenied,
				"the certificate of a %s is not accepted through the gateways' public port: use the xds-server's own address",
				subject.Role,
			)
		}
	default:
		c.rejection = status.Errorf(codes.PermissionDenied, "certificates of the role %s are not accepted here", subject.Role)
	}
	if c.expired || c.rejection != nil {
		c.class = unauthenticated
	}
	return leaf
}

// rejection returns the status for a certificate that is not accepted. Its code is codes.FailedPrecondition if the
// certificate will never be accepted again, so that its holder must enrol again.
func rejection(leaf *x509.Certificate, err error, now time.Time) error {
	var (
		invalid x509.CertificateInvalidError
		unknown x509.UnknownAuthorityError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(leaf.NotBefore):
		return status.Errorf(
			codes.Unavailable, "the certificate is not valid before %s, and the clock of the server shows %s: is a clock wrong?",
			clock(leaf.NotBefore), clock(now),
		)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return status.Errorf(
			codes.FailedPrecondition, "the certificate expired at %s, and can no longer be renewed: enrol again",
			clock(leaf.NotAfter),
		)
	case errors.As(err, &unknown):
		return status.Error(
			codes.FailedPrecondition,
			"this installation does not trust the CA of the certificate, or no longer does: enrol again",
		)
	case errors.As(err, &invalid):
		return status.Errorf(codes.PermissionDenied, "the certificate is not accepted: %v", err)
	}
	return status.Error(codes.Unavailable, "the server has not read the installation's CAs yet")
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
