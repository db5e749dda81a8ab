package edge

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/agent/status"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/dial"
	"github.com/fairlead/fairlead/pkg/envoy"
	"github.com/fairlead/fairlead/pkg/envoy/network"
	"github.com/fairlead/fairlead/pkg/model"
)

var egressSubject = model.Subject{Role: model.RoleEgress, Node: "egress-a", ID: model.NewID()}

func newEgress(t *testing.T, socket string) (*Role, error) {
	t.Helper()
	return NewRole(Config{
		Role: model.RoleEgress, Domain: domain, Dialer: &dial.Dialer{Addresses: []model.Endpoint{atFront}}, Socket: socket,
		// These are flags of edges.
		APIServers: []model.Endpoint{target}, Listen: []model.Endpoint{target},
		Allowed: network.Allowed{Targets: []model.Endpoint{target}},
	}, t.TempDir(), status.New(status.Process), slog.New(slog.DiscardHandler))
}

func TestAnEgressIsReadyWhenEnvoyListens(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "private", "egress.sock")
	e, err := newEgress(t, socket)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder of the socket is %v, %v", info.Mode(), err)
	}
	if err := e.Ready(); err == nil {
		t.Error("it is ready without a socket")
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Ready(); err != nil {
		t.Error(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	listener.Close()
	if err := e.Ready(); err == nil {
		t.Error("it is ready with the socket of an Envoy that has ended")
	}
}

func TestAnEgressLeavesTheModeOfItsFolder(t *testing.T) {
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil { // as the kubelet makes an emptyDir
		t.Fatal(err)
	}
	if _, err := newEgress(t, filepath.Join(shared, "egress.sock")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(shared); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the folder is %v, %v: the apiserver beside it may have another user", info.Mode(), err)
	}
}

func TestAnEgressAnnouncesItsSocketAlone(t *testing.T) {
	e, err := newEgress(t, filepath.Join(t.TempDir(), "egress.sock"))
	if err != nil {
		t.Fatal(err)
	}
	node := e.Node(egressSubject)
	got, err := envoy.ParseEdgeDial(node)
	if err != nil || got.Socket != e.Socket || len(got.APIServers)+len(got.Listen)+len(got.Gateways) > 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if node.GetCluster() != domain.EgressID(egressSubject.ID) {
		t.Errorf("the node is of %s", node.GetCluster())
	}
	if _, err := newEgress(t, "egress.sock"); err == nil {
		t.Error("a socket in the working folder is accepted")
	}
}

// TestARoleOwnsNoIdentityOfAnother: a state folder keeps its identity when the bootstrap file changes.
func TestARoleOwnsNoIdentityOfAnother(t *testing.T) {
	for _, role := range []model.Role{model.RoleEdge, model.RoleEgress} {
		e := &Role{Config: Config{Domain: domain, Role: role}}
		for _, subject := range []model.Subject{edgeSubject, egressSubject, {Role: model.RoleGateway, Node: name}} {
			if err := e.Owns(subject); (err == nil) != (subject.Role == role) {
				t.Errorf("%s owns %+v: %v", role, subject, err)
			}
		}
	}
}

// TestATokenOfAnotherRoleIsUsedOnce: each attempt would use it up.
func TestATokenOfAnotherRoleIsUsedOnce(t *testing.T) {
	ca, err := certs.NewCA("test", time0, life)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEgress(t, filepath.Join(t.TempDir(), "egress.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", edgeSubject.ID} {
		credential := Credential{Token: "fl1." + id, ID: id}
		err := e.verify(identityOf(t, ca, edgeSubject), credential)
		if !errors.Is(err, certs.ErrRefused) || !strings.Contains(err.Error(), "role") {
			t.Errorf("with the id %q: %v", id, err)
		}
		next := foreignToken{path: e.foreign.path} // of the next agent
		if err := next.reject(credential); !errors.Is(err, certs.ErrRefused) {
			t.Errorf("the next agent uses it: %v", err)
		}
	}
	own := egressSubject
	if err := e.verify(identityOf(t, ca, own), Credential{Token: "fl1.own", ID: own.ID}); err != nil {
		t.Error(err)
	}
}
