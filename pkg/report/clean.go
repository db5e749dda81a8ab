package report

import (
	"errors"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/addresses"
	"github.com/fairlead/fairlead/internal/printable"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// An edge's report is stored in objects of the management cluster and shown to people, so its size is bounded.
const (
	// MaxReport is the most bytes of a whole report of an edge, as received.
	MaxReport = 64 << 10
	// MaxText is the most bytes of a message.
	MaxText  = 1024
	maxWord  = 64  // form, versions
	maxHost  = 270 // an address: a DNS name, brackets and a port
	maxWays  = 16  // of an edge, which dials as many addresses at most
	maxNames = 64  // of a certificate; kubeadm's have about ten
	maxName  = 253 // a DNS name
)

const (
	// MaxTunnels is how many tunnels one gateway may report, which are a quarter more than it admits. They fit in one
	// message of 32 MiB, which is the maximum of pkg/controlchannel: each has 193 bytes at most.
	MaxTunnels = 125_000
	// MaxKey exceeds the length of two IPv6 addresses and ports.
	MaxKey = 120
	// MaxWorkers far exceeds the workers of an Envoy.
	MaxWorkers = 1024
)

// CheckEdge returns why an edge's report is invalid, beyond what CleanEdge corrects. The error is a gRPC status.
func CheckEdge(r *reportv1.EdgeReport) error {
	if size := proto.Size(r); size > MaxReport {
		return status.Errorf(codes.InvalidArgument, "a report of %d bytes is too large", size)
	}
	for _, a := range []*reportv1.APIServer{r.GetApiServer(), r.GetAnswer().GetApiServer()} {
		if at := a.GetCertificateNotAfter(); at != nil && at.CheckValid() != nil {
			return status.Error(codes.InvalidArgument, "a report has an invalid time")
		}
	}
	return nil
}

// CleanEdge returns the part of an edge's report that is stored: printable texts, truncated to their bounds.
func CleanEdge(r *reportv1.EdgeReport) *reportv1.EdgeReport {
	// Field by field, so that unknown fields are dropped.
	clean := &reportv1.EdgeReport{
		Form: printable.Text(r.GetForm(), maxWord), Version: printable.Text(r.GetVersion(), maxWord),
		LastError: printable.Text(r.GetLastError(), MaxText),
	}
	if r.GetApiServer() != nil {
		clean.ApiServer = CleanAPIServer(r.GetApiServer())
	}
	clean.Addresses = cleanAddresses(r.GetAddresses())
	clean.Ways = CleanWays(r.GetWays(), maxWays)
	return clean
}

// CleanWays does the same for ways, of which it keeps the first ones.
func CleanWays(from []*reportv1.Way, most int) (to []*reportv1.Way) {
	for _, w := range from[:min(len(from), most)] {
		to = append(to, &reportv1.Way{
			To: printable.Text(w.GetTo(), maxHost), RoundTripMicros: w.GetRoundTripMicros(), Rank: w.GetRank(),
			Zone: printable.Text(w.GetZone(), maxWord),
		})
	}
	return to
}

// cleanAddresses returns the addresses of a machine that are valid.
func cleanAddresses(of []string) (clean []string) {
	for _, a := range of {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Zone() == "" && len(clean) < addresses.Max {
			clean = append(clean, ip.Unmap().String())
		}
	}
	return clean
}

// CleanAPIServer does the same for an edge's observation of an apiserver.
func CleanAPIServer(from *reportv1.APIServer) *reportv1.APIServer {
	to := &reportv1.APIServer{
		Address: printable.Text(from.GetAddress(), maxHost), Healthy: from.GetHealthy(),
		Message: printable.Text(from.GetMessage(), MaxText),
		Version: printable.Text(from.GetVersion(), maxWord), Reason: printable.Text(from.GetReason(), maxWord),
	}
	for _, name := range from.GetCertificateNames() {
		if len(to.CertificateNames) < maxNames && IsWord(name, maxName) {
			to.CertificateNames = append(to.CertificateNames, name)
		}
	}
	if at := from.GetCertificateNotAfter(); at != nil {
		to.CertificateNotAfter = timestamppb.New(at.AsTime())
	}
	return to
}

// IsWord returns whether a text consists of printable ASCII without spaces, is not empty, and has at most that many
// bytes.
func IsWord(s string, most int) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// CheckGateway returns why a gateway's report is invalid. The error is a gRPC status.
func CheckGateway(r *reportv1.GatewayReport) error {
	if n := max(len(r.GetTunnels()), len(r.GetClosed()), len(r.GetHoles()), len(r.GetConnections())); n > MaxTunnels {
		return status.Errorf(codes.InvalidArgument, "a report of %d tunnels is too large", n)
	}
	for _, t := range r.GetTunnels() {
		if !IsWord(t.GetKey(), MaxKey) {
			return status.Error(codes.InvalidArgument, "a tunnel has no usable key")
		}
		if err := checkRef(t.GetNode(), t.GetTunnelId()); err != nil {
			return err
		}
	}
	for _, hole := range r.GetHoles() {
		if err := checkRef(hole.GetNode(), hole.GetTunnelId()); err != nil {
			return err
		}
		if n := hole.GetWorkers(); n < 0 || n > MaxWorkers {
			return status.Errorf(codes.InvalidArgument, "an edge has no tunnel on %d workers: the number is invalid", n)
		}
	}
	for _, c := range r.GetConnections() {
		if err := checkRef(c.GetNode(), c.GetTunnelId()); err != nil {
			return err
		}
		if n := c.GetCount(); n < 0 || n > MaxTunnels {
			return status.Errorf(codes.InvalidArgument, "a node has %d connections: the number is invalid", n)
		}
	}
	for _, key := range r.GetClosed() {
		if !IsWord(key, MaxKey) {
			return status.Error(codes.InvalidArgument, "a closed tunnel has no usable key")
		}
	}
	return nil
}

// checkRef returns why the name of an edge is invalid. The error is a gRPC status.
func checkRef(node, id string) error {
	if err := errors.Join(model.ValidateNodeName(node), model.ValidateID(id)); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}
