package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/pkg/agent/edge"
	"github.com/fairlead/fairlead/pkg/agent/gateway"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/pkg/model"
)

func TestTwoAgentsDoNotShareAFolder(t *testing.T) {
	for name, runtime := range map[string]string{"the state folder": "", "the runtime folder": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			locked := dir
			if runtime != "" {
				locked = runtime
			}
			unlock, err := lock(locked)
			if err != nil {
				t.Fatal(err)
			}
			a, err := New(
				Config{Edges: []edge.Config{{Domain: domain}}, StateDir: dir, RuntimeDir: runtime, Envoy: os.Args[0]}, nil,
			)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another agent") {
				t.Errorf("got %v", err)
			}
			unlock()
			for range 2 { // checks that nothing stays locked
				if unlock, err = a.config.lock(); err != nil {
					t.Fatal(err)
				}
				unlock()
			}
		})
	}
}

func TestNewRejectsAnInvalidConfiguration(t *testing.T) {
	edge := []edge.Config{{Domain: domain}}
	tests := map[string]struct {
		in      Config
		wantErr string
	}{
		"no state folder": {in: Config{Edges: edge}, wantErr: "state folder"},
		"a folder too long for sockets": {
			in:      Config{Edges: edge, StateDir: "/" + strings.Repeat("a", 100)},
			wantErr: "too long by 5",
		},
		"a runtime folder too long for them": {
			in:      Config{Edges: edge, StateDir: "/a", RuntimeDir: "/" + strings.Repeat("a", 100)},
			wantErr: "too long by 5",
		},
		"a negative number of Envoy's workers": {
			in:      Config{Edges: edge, StateDir: "/a", Concurrency: -1},
			wantErr: "workers",
		},
		"a negative time to drain": {in: Config{Edges: edge, StateDir: "/a", DrainTimeout: -1}, wantErr: "drain"},
		"a program that is not there": {
			in:      Config{Edges: edge, StateDir: "/a", Envoy: "/a/envoy"},
			wantErr: "finding Envoy",
		},
		"neither an edge nor a gateway": {in: Config{StateDir: "/a"}, wantErr: "either an edge or a gateway"},
		"both an edge and a gateway": {
			in:      Config{StateDir: "/a", Edges: edge, Gateway: &gateway.Config{}},
			wantErr: "either an edge or a gateway",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := New(tc.in, nil); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	tests := map[string]struct {
		want uint64
		text string
	}{
		"1Gi":   {want: 1 << 30, text: "1Gi"},
		"512Mi": {want: 512 << 20, text: "512Mi"},
		"2048":  {want: 2048, text: "2Ki"},
		"1025":  {want: 1025, text: "1025"},
		"1.5Gi": {}, "0": {}, "": {}, "-1": {}, "1GB": {}, "Mi": {}, "99999999999Gi": {},
	}
	for in, tc := range tests {
		t.Run(in, func(t *testing.T) {
			var got size
			if err := got.Set(in); (err == nil) != (tc.want != 0) || uint64(got) != tc.want || got.String() != tc.text {
				t.Errorf("got %d, %s, %v", got, got.String(), err)
			}
		})
	}
}

func TestAnEnrolmentUsesTheFolderOfItsTunnel(t *testing.T) {
	c := newControl(t)
	other := model.Subject{Role: model.RoleEdge, Node: "edge-b", ID: model.NewID()}
	root := t.TempDir()
	a := &Agent{config: Config{StateDir: root, Edges: make([]edge.Config, 2)}}
	for folder, subject := range map[string]model.Subject{"x": edgeSubject, other.ID: other} {
		store, err := certs.OpenStore(filepath.Join(root, tunnelsFolder, folder))
		if err != nil {
			t.Fatal(err)
		}
		c.save(store, c.fresh(subject))
	}
	id := model.NewID()
	tests := map[string]struct{ id, want string }{
		"an identity under another name": {id: edgeSubject.ID, want: "x"},
		"an identity under its own name": {id: other.ID, want: other.ID},
		"no identity yet":                {id: id, want: id},
		"a credential that does not say": {want: nameless},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := edge.Config{
				Domain:     domain,
				Credential: func() (edge.Credential, error) { return edge.Credential{ID: tc.id}, nil },
			}
			if got := filepath.Base(a.folderOf(e)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
