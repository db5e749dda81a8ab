// Package status records the state of a membership of an agent, and whether its Envoy accepts clients. Input: events
// of the other parts of an agent. Output: the report that the controller shows, the answer to /status, and readiness.
// It observes nothing itself.
package status

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/version"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/probe"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
	"github.com/fairlead/fairlead/pkg/xdsproxy"
)

// Labels maps the subjects of trouble to values of a metric label.
var Labels = map[model.Trouble]string{
	model.TroubleCertificate: "certificate", model.TroubleConfiguration: "configuration",
	model.TroubleChannel: "control_channel", model.TroubleEnvoy: "envoy", model.TroubleStart: "envoy_start",
	model.TroubleHang: "envoy_hangs", model.TroubleReplaced: "envoy_replaced", model.TroubleDisk: "disk",
	model.TroubleMembership: "membership",
}

// maxTrouble bounds the reported length of an error.
const maxTrouble = 500

// Forms of an edge.
const (
	Process   = "Process"
	Container = "Container"
)

// Status is the state of a membership, for reports and for operators. It is safe for concurrent use.
type Status struct {
	form    string
	Changed chan struct{} // notified when the report changes

	mu        sync.Mutex
	subject   model.Subject
	notAfter  time.Time
	connected bool
	cached    bool
	troubles  []trouble // the newest last
	apiserver *probe.Result
	addresses []string // of the machine
	ways      []*reportv1.Way
}

type trouble struct {
	about model.Trouble
	text  string
}

// New returns the status of a membership of an agent that runs in this form.
func New(form string) *Status {
	return &Status{form: form, Changed: make(chan struct{}, 1)}
}

// Form returns the form in which this agent runs. With an Envoy that another program starts, that is a container.
func Form(external bool) string {
	if external || os.Getpid() == 1 || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return Container
	}
	for _, path := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(path); err == nil {
			return Container
		}
	}
	return Process
}

// SetTrouble records the present trouble about a subject.
func (s *Status) SetTrouble(about model.Trouble, text string) {
	text = strings.ReplaceAll(text, "\n", "; ") // errors about several addresses have several lines
	if len(text) > maxTrouble {
		text = text[:maxTrouble] + "…"
	}
	t := trouble{about, strings.ToValidUTF8(text, "?")}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.troubles, t) {
		return
	}
	s.remove(about)
	s.troubles = append(s.troubles, t)
	s.notify()
}

// ClearTrouble records that there is no trouble about a subject.
func (s *Status) ClearTrouble(about model.Trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remove(about) {
		s.notify()
	}
}

func (s *Status) remove(about model.Trouble) bool {
	n := len(s.troubles)
	s.troubles = slices.DeleteFunc(s.troubles, func(t trouble) bool { return t.about == about })
	return len(s.troubles) < n
}

func (s *Status) notify() {
	select {
	case s.Changed <- struct{}{}:
	default: // a notification is pending
	}
}

// newest returns the newest trouble; empty: none.
func (s *Status) newest() string {
	if len(s.troubles) == 0 {
		return ""
	}
	t := s.troubles[len(s.troubles)-1]
	return string(t.about) + ": " + t.text
}

// SetIdentity records the identity in use.
func (s *Status) SetIdentity(subject model.Subject, identity certs.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subject, s.notAfter = subject, identity.NotAfter()
}

// SetAddresses records the addresses of the machine for reports.
func (s *Status) SetAddresses(all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses = all
}

// SetWays records the ways to the gateways for reports. Only another order makes a new report, not another round trip.
func (s *Status) SetWays(all []*reportv1.Way) {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := slices.EqualFunc(s.ways, all, func(a, b *reportv1.Way) bool {
		return a.GetTo() == b.GetTo() && a.GetRank() == b.GetRank()
	})
	if !same {
		s.ways = all
		s.notify()
	}
}

// SetConfiguration records the state of the xDS proxy.
func (s *Status) SetConfiguration(state xdsproxy.State) {
	s.mu.Lock()
	s.connected, s.cached = state.Connected, state.Cached
	s.mu.Unlock()
	for about, text := range map[model.Trouble]string{
		model.TroubleConfiguration: state.Refused,
		model.TroubleChannel: map[bool]string{
			true: "not reached since the start: Envoy runs with cached configuration",
		}[state.Cached],
	} {
		if text == "" {
			s.ClearTrouble(about)
		} else {
			s.SetTrouble(about, text)
		}
	}
}

// Reset removes an identity that is over, and its state.
func (s *Status) Reset() {
	s.mu.Lock()
	s.subject, s.notAfter, s.apiserver = model.Subject{}, time.Time{}, nil
	s.mu.Unlock()
	s.SetConfiguration(xdsproxy.State{})
}

// SetAPIServer records the result of a probe. Only a changed result makes a new report.
func (s *Status) SetAPIServer(result probe.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.apiserver != nil && reflect.DeepEqual(*s.apiserver, result) {
		return
	}
	s.apiserver = &result
	s.notify()
}

// Report returns the report of this edge for the controller.
func (s *Status) Report() *reportv1.EdgeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &reportv1.EdgeReport{
		Form: s.form, Version: version.Get(), LastError: s.newest(), Addresses: s.addresses,
		Ways: s.ways,
	}
	if s.apiserver != nil {
		r.ApiServer = APIServer(s.apiserver)
	}
	return r
}

// APIServer converts the result of a probe for a report.
func APIServer(result *probe.Result) *reportv1.APIServer {
	a := &reportv1.APIServer{
		Address: result.Address, Healthy: result.Healthy, Reason: string(result.Reason), Message: result.Message,
		Version: result.Version, CertificateNames: result.CertificateNames,
	}
	if !result.CertificateNotAfter.IsZero() {
		a.CertificateNotAfter = timestamppb.New(result.CertificateNotAfter)
	}
	return a
}

// Member is the state of a membership in /status.
type Member struct {
	Node      string        `json:"node,omitempty"`
	TunnelID  string        `json:"tunnelID,omitempty"`
	Joined    string        `json:"joined,omitempty"` // its name, if it was joined at run time
	NotAfter  *time.Time    `json:"certificateNotAfter,omitempty"`
	Connected bool          `json:"connected"`        // to the xds-server
	Cached    bool          `json:"cached,omitempty"` // Envoy has the cached configuration
	APIServer *probe.Result `json:"apiServer,omitempty"`
	LastError string        `json:"lastError,omitempty"`
}

// State returns the state of the membership for /status.
func (s *Status) State() Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := Member{
		Node: s.subject.Node, TunnelID: s.subject.ID, Connected: s.connected, Cached: s.cached,
		APIServer: s.apiserver, LastError: s.newest(),
	}
	if !s.notAfter.IsZero() {
		at := s.notAfter // a copy: the lock guards the field
		m.NotAfter = &at
	}
	return m
}

// Summary is the state of a membership for metrics.
type Summary struct {
	NotAfter          time.Time
	Connected, Cached bool
	Troubles          []model.Trouble
}

// Summary returns the state of the membership for metrics.
func (s *Status) Summary() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Summary{NotAfter: s.notAfter, Connected: s.connected, Cached: s.cached}
	for _, t := range s.troubles {
		out.Troubles = append(out.Troubles, t.about)
	}
	return out
}
