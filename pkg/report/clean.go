package report

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// What an edge says ends up in objects of the management cluster and before the eyes of people, so its size is bounded.
const (
	maxReport = 64 << 10 // of a whole report, as it comes
	maxWord   = 64       // form, versions
	maxHost   = 270      // an address: a DNS name, brackets and a port
	maxText   = 1024     // messages
	maxNames  = 64       // of a certificate; kubeadm's have about ten
	maxName   = 253      // a DNS name
)

const (
	// maxTunnels is how many tunnels one gateway may have. They fit in one message: see maxKey and pkg/xds.
	maxTunnels = 50_000
	// maxKey is more than two IPv6 addresses and ports have.
	maxKey = 120
	// maxWorkers is far more than an Envoy has.
	maxWorkers = 1024
)

// checkEdge says what is wrong with an edge's report, beyond what cleanEdge can put right. An error is a gRPC status.
func checkEdge(r *reportv1.EdgeReport) error {
	if size := proto.Size(r); size > maxReport {
		return status.Errorf(codes.InvalidArgument, "a report of %d bytes is too large", size)
	}
	for _, a := range []*reportv1.APIServer{r.GetApiServer(), r.GetAnswer().GetApiServer()} {
		if at := a.GetCertificateNotAfter(); at != nil && at.CheckValid() != nil {
			return status.Error(codes.InvalidArgument, "a report has a time that is none")
		}
	}
	return nil
}

// cleanEdge returns what is kept of an edge's report: texts without anything that can't be printed, and cut where they are
// too long.
func cleanEdge(r *reportv1.EdgeReport) *reportv1.EdgeReport {
	// Field by field, so that nothing is kept that is not known here.
	clean := &reportv1.EdgeReport{
		Form: text(r.GetForm(), maxWord), Version: text(r.GetVersion(), maxWord), LastError: text(r.GetLastError(), maxText),
	}
	if r.GetApiServer() != nil {
		clean.ApiServer = cleanAPIServer(r.GetApiServer())
	}
	return clean
}

// cleanAPIServer does the same for what an edge sees of an apiserver.
func cleanAPIServer(from *reportv1.APIServer) *reportv1.APIServer {
	to := &reportv1.APIServer{
		Address: text(from.GetAddress(), maxHost), Healthy: from.GetHealthy(), Message: text(from.GetMessage(), maxText),
		Version: text(from.GetVersion(), maxWord),
	}
	for _, name := range from.GetCertificateNames() {
		if len(to.CertificateNames) < maxNames && isWord(name, maxName) {
			to.CertificateNames = append(to.CertificateNames, name)
		}
	}
	if at := from.GetCertificateNotAfter(); at != nil {
		to.CertificateNotAfter = timestamppb.New(at.AsTime())
	}
	return to
}

// text replaces what can't be printed by spaces and cuts what is too long.
func text(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	for cut := most; len(s) > most; cut-- { // at the beginning of a rune
		if utf8.RuneStart(s[cut]) {
			s = s[:cut]
		}
	}
	return s
}

// isWord says whether a text is short and of printable ASCII without spaces, and not empty.
func isWord(s string, most int) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// checkGateway says what is wrong with a gateway's report. An error is a gRPC status.
func checkGateway(r *reportv1.GatewayReport) error {
	if n := max(len(r.GetTunnels()), len(r.GetClosed()), len(r.GetHoles())); n > maxTunnels {
		return status.Errorf(codes.InvalidArgument, "a report of %d tunnels is too large", n)
	}
	for _, t := range r.GetTunnels() {
		if !isWord(t.GetKey(), maxKey) {
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
		if n := hole.GetWorkers(); n < 0 || n > maxWorkers {
			return status.Errorf(codes.InvalidArgument, "an edge has no tunnel on %d workers, which can't be", n)
		}
	}
	for _, key := range r.GetClosed() {
		if !isWord(key, maxKey) {
			return status.Error(codes.InvalidArgument, "a closed tunnel has no usable key")
		}
	}
	return nil
}

// checkRef says what is wrong with the name of an edge. An error is a gRPC status.
func checkRef(node, id string) error {
	if err := errors.Join(model.ValidateNodeName(node), model.ValidateID(id)); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}
