package agent

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

// What trouble can be about. Each has at most one trouble at a time.
const (
	aboutCertificate   = "certificate"
	aboutConfiguration = "configuration"
	aboutCache         = "control channel"
	aboutEnvoy         = "Envoy"
	aboutStart         = "start of Envoy"
	aboutDisk          = "disk"
	aboutMembership    = "membership"
	aboutHang          = "Envoy hangs"
	aboutReplaced      = "Envoy replaced"
)

// maxTrouble is how much of an error is reported.
const maxTrouble = 500

// Forms of an edge.
const (
	formProcess   = "Process"
	formContainer = "Container"
)

// status is how a membership is, for the report and for people. It is safe for concurrent use.
type status struct {
	form    string
	changed chan struct{} // signalled when the report is another

	mu        sync.Mutex
	subject   model.Subject
	notAfter  time.Time
	connected bool
	cached    bool
	troubles  []trouble // the newest last
	sight     *probe.Result
}

type trouble struct{ about, text string }

func newStatus(c Config) *status {
	return &status{form: form(c), changed: make(chan struct{}, 1)}
}

// form is how this agent runs.
func form(c Config) string {
	if c.External || os.Getpid() == 1 || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return formContainer
	}
	for _, path := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(path); err == nil {
			return formContainer
		}
	}
	return formProcess
}

// trouble records what is wrong now about something.
func (s *status) trouble(about, text string) {
	text = strings.ReplaceAll(text, "\n", "; ") // of an error about several addresses
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

// over records that nothing is wrong any more about something.
func (s *status) over(about string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remove(about) {
		s.notify()
	}
}

func (s *status) remove(about string) bool {
	n := len(s.troubles)
	s.troubles = slices.DeleteFunc(s.troubles, func(t trouble) bool { return t.about == about })
	return len(s.troubles) < n
}

func (s *status) notify() {
	select {
	case s.changed <- struct{}{}:
	default: // there is a signal already
	}
}

// newest is the newest trouble that is not over.
func (s *status) newest() string {
	if len(s.troubles) == 0 {
		return ""
	}
	t := s.troubles[len(s.troubles)-1]
	return t.about + ": " + t.text
}

// certificate records the identity in use.
func (s *status) certificate(subject model.Subject, identity certs.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subject, s.notAfter = subject, identity.NotAfter()
}

// configuration records how the relay is.
func (s *status) configuration(state xdsproxy.State) {
	s.mu.Lock()
	s.connected, s.cached = state.Connected, state.Cached
	s.mu.Unlock()
	for about, text := range map[string]string{
		aboutConfiguration: state.Refused,
		aboutCache:         map[bool]string{true: "not reached since the start, Envoy runs with the configuration of before"}[state.Cached],
	} {
		if text == "" {
			s.over(about)
		} else {
			s.trouble(about, text)
		}
	}
}

// reset forgets an identity that is over, and what was with it.
func (s *status) reset() {
	s.mu.Lock()
	s.subject, s.notAfter, s.sight = model.Subject{}, time.Time{}, nil
	s.mu.Unlock()
	s.configuration(xdsproxy.State{})
}

// saw records a look at the apiservers. Only one that is another than the last one is news.
func (s *status) saw(result probe.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sight != nil && reflect.DeepEqual(*s.sight, result) {
		return
	}
	s.sight = &result
	s.notify()
}

// report is what the controller shows of this edge.
func (s *status) report() *reportv1.EdgeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &reportv1.EdgeReport{Form: s.form, Version: version.Get(), LastError: s.newest()}
	if s.sight != nil {
		r.ApiServer = apiServerOf(s.sight)
	}
	return r
}

func apiServerOf(result *probe.Result) *reportv1.APIServer {
	a := &reportv1.APIServer{
		Address: result.Address, Healthy: result.Healthy, Message: result.Message, Version: result.Version, CertificateNames: result.CertificateNames,
	}
	if !result.CertificateNotAfter.IsZero() {
		a.CertificateNotAfter = timestamppb.New(result.CertificateNotAfter)
	}
	return a
}
