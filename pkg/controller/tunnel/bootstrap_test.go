package tunnel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/controllertest"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestTheBootstrapCommandWritesTheFileAndRunsTheAgent(t *testing.T) {
	file := bootstrapFile{
		ID: "0123456789abcdef", Gateway: "gw.example.com:443", TunnelDomain: "tunnels.example.com", Token: "fl1.abc",
		CA: "-----BEGIN CERTIFICATE-----\nMII$HOME`id`=\n-----END CERTIFICATE-----\n",
	}
	data, err := file.data()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	agent := "#!/bin/sh\necho \"$@\" >" + dir + "/arguments\n"
	if err := os.WriteFile(filepath.Join(dir, "edge-agent"), []byte(agent), 0o755); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(string(data[v1alpha1.BootstrapCommandKey]), "/etc/fairlead", dir+"/etc")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	path := filepath.Join(dir, "etc/bootstrap.yaml")
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got bootstrapFile
	if err := yaml.UnmarshalStrict(written, &got); err != nil || got != file {
		t.Errorf("got %+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file with the token: %v, %v", info.Mode(), err)
	}
	if arguments, err := os.ReadFile(filepath.Join(dir, "arguments")); err != nil ||
		string(arguments) != "run --bootstrap "+path+"\n" {
		t.Errorf("arguments %q, %v", arguments, err)
	}
}

func TestChooseToken(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := controllertest.Config()
	config.TokenUses = 4
	record := func(token string, left time.Duration, uses int32) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{
			SHA256: enrol.HashToken(token), ExpiresAt: metav1.NewTime(at.Add(left)), MaxUses: 4, Uses: uses,
		}
	}
	of := func(uses int32) v1alpha1.TokenStatus {
		one := record("t", 20*time.Hour, 0)
		one.MaxUses = uses
		return one
	}
	many := func(uses int32) (all []v1alpha1.TokenStatus) {
		for i := range maxTokens {
			all = append(all, record(string(rune('a'+i)), 72*time.Hour, uses))
		}
		return all
	}
	tests := map[string]struct {
		records  []v1alpha1.TokenStatus
		secret   string // the token in the Secret; empty: it does not exist
		wantSame bool
		wantLeft int // of the previous records
	}{
		"the first one": {},
		"a fresh one stays": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0)}, secret: "t", wantSame: true, wantLeft: 1,
		},
		"half of its uses are left": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 2)}, secret: "t", wantSame: true, wantLeft: 1,
		},
		"less than half of its uses are left": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 3)}, secret: "t", wantLeft: 1,
		},
		"used up": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 4)}, secret: "t", wantLeft: 1,
		},
		"another number of uses is configured now": {
			records: []v1alpha1.TokenStatus{of(3)}, secret: "t", wantLeft: 1,
		},
		"half of its lifetime has passed": {
			records: []v1alpha1.TokenStatus{record("t", 12*time.Hour, 0)}, secret: "t", wantLeft: 1,
		},
		"expired": {records: []v1alpha1.TokenStatus{record("t", 0, 0)}, secret: "t"},
		"the Secret was deleted": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0), record("older", 2*time.Hour, 3)},
		},
		"it was, and one is used up": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0), record("older", 2*time.Hour, 4)}, wantLeft: 1,
		},
		"the Secret has one of no record": {
			records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0)}, secret: "planted", wantLeft: 1,
		},
		"the records were lost with the status": {secret: "t"},
		"many that end later have uses left":    {records: many(1), secret: "planted", wantLeft: maxTokens},
		"many that end later are used up":       {records: many(4), wantLeft: maxTokens - 1},
		"the oldest of many has uses left": {
			records: append([]v1alpha1.TokenStatus{record("t", time.Hour, 3)}, many(4)...), secret: "planted",
			wantLeft: maxTokens - 1,
		},
		"the newest of many is used up": {
			records: append(many(3), record("t", 20*time.Hour, 4)), secret: "t", wantLeft: maxTokens,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var secret *corev1.Secret
			if tc.secret != "" {
				secret = &corev1.Secret{Data: map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(tc.secret)}}
			}
			status := &v1alpha1.TunnelStatus{Tokens: tc.records}
			token, err := chooseToken(config, status, secret, "", at)
			if err != nil {
				t.Fatal(err)
			}
			if (token == tc.secret) != tc.wantSame {
				t.Errorf("same token: %v, want %v", token == tc.secret, tc.wantSame)
			}
			want := tc.wantLeft
			if !tc.wantSame {
				want++
			}
			if i := records.TokenIndex(status.Tokens, enrol.HashToken(token)); i < 0 || len(status.Tokens) != want {
				t.Errorf("%d records, want %d; the token's is number %d", len(status.Tokens), want, i)
			}
			for _, r := range tc.records {
				if secret != nil && r.Uses < r.MaxUses && r.ExpiresAt.After(at) && records.TokenIndex(status.Tokens, r.SHA256) < 0 {
					t.Errorf("a token is forgotten that has %d uses left", r.MaxUses-r.Uses)
				}
			}
			if wait := requeueAfter(config, *status, token, at); wait <= 0 || wait > 14*time.Hour {
				t.Errorf("next look after %s", wait)
			}
		})
	}
}

func TestTokenRecordsAreBounded(t *testing.T) {
	config, status, at := controllertest.Config(), &v1alpha1.TunnelStatus{}, time.Now()
	for range 3 * maxTokens {
		if _, err := chooseToken(config, status, nil, "", at); err != nil {
			t.Fatal(err)
		}
		newest := &status.Tokens[len(status.Tokens)-1]
		newest.Uses = newest.MaxUses
		at = at.Add(time.Second)
	}
	if len(status.Tokens) != maxTokens || !status.Tokens[maxTokens-1].ExpiresAt.After(status.Tokens[0].ExpiresAt.Time) {
		t.Errorf("%d records: %v", len(status.Tokens), status.Tokens)
	}
}

func TestATokenThatIsNotOnRecordIsDueAtOnce(t *testing.T) {
	config := controllertest.Config()
	if wait := requeueAfter(config, v1alpha1.TunnelStatus{}, "fl1.lost", time.Now()); wait <= 0 || wait > 3*time.Second {
		t.Errorf("next look after %s", wait)
	}
}

func TestTheBootstrapFileNamesTheTunnel(t *testing.T) {
	cluster, tunnel := controllertest.Served("c1", 1000)
	installed := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Config().Namespace, Name: v1alpha1.InstallationConfigMapName},
		Data:       map[string]string{v1alpha1.TrustBundleKey: "a CA"},
	}
	old := controllertest.BootstrapOf(cluster) // as an older controller has left it
	old.Data = map[string][]byte{v1alpha1.BootstrapFileKey: []byte("token: fl1.old\n")}
	for name, api := range map[string]client.WithWatch{
		"a new Secret": controllertest.FakeAPI(t, cluster, tunnel, installed),
		"an old one":   controllertest.FakeAPI(t, cluster, tunnel, installed, old),
	} {
		if _, err := started(t, api, api).Reconcile(
			t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(tunnel)},
		); err != nil {
			t.Fatal(err)
		}
		secret := controllertest.BootstrapOf(cluster)
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			t.Fatal(err)
		}
		var file map[string]string
		if err := yaml.UnmarshalStrict(secret.Data[v1alpha1.BootstrapFileKey], &file); err != nil || file["id"] == "" ||
			file["id"] != tunnel.Spec.ID {
			t.Errorf("%s: id %q, want %q; %v", name, file["id"], tunnel.Spec.ID, err)
		}
	}
}
