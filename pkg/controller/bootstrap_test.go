package controller

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/enrol"
)

func TestTheBootstrapCommandWritesTheFileAndRunsTheAgent(t *testing.T) {
	file := bootstrapFile{Gateway: "gw.example.com:443", TunnelDomain: "tunnels.example.com", Token: "fl1.abc", CA: "-----BEGIN CERTIFICATE-----\nMII$HOME`id`=\n-----END CERTIFICATE-----\n"}
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
	if arguments, err := os.ReadFile(filepath.Join(dir, "arguments")); err != nil || string(arguments) != "run --bootstrap "+path+"\n" {
		t.Errorf("arguments %q, %v", arguments, err)
	}
}

func TestChooseToken(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := testConfig()
	record := func(token string, left time.Duration, uses int32) v1alpha1.TokenStatus {
		return v1alpha1.TokenStatus{SHA256: enrol.HashToken(token), ExpiresAt: metav1.NewTime(at.Add(left)), MaxUses: 4, Uses: uses}
	}
	tests := map[string]struct {
		records  []v1alpha1.TokenStatus
		secret   string // the token in the Secret; empty: there is none
		wantSame bool
		wantLeft int // of the records that were there
	}{
		"the first one":                         {},
		"a fresh one stays":                     {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0)}, secret: "t", wantSame: true, wantLeft: 1},
		"half of its uses are left":             {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 2)}, secret: "t", wantSame: true, wantLeft: 1},
		"less than half of its uses are left":   {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 3)}, secret: "t", wantLeft: 1},
		"used up":                               {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 4)}, secret: "t", wantLeft: 1},
		"half of its life is over":              {records: []v1alpha1.TokenStatus{record("t", 12*time.Hour, 0)}, secret: "t", wantLeft: 1},
		"expired":                               {records: []v1alpha1.TokenStatus{record("t", 0, 0)}, secret: "t"},
		"the Secret was deleted":                {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0)}, wantLeft: 1},
		"the Secret has one of no record":       {records: []v1alpha1.TokenStatus{record("t", 20*time.Hour, 0)}, secret: "planted", wantLeft: 1},
		"the records were lost with the status": {secret: "t"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var secret *corev1.Secret
			if tc.secret != "" {
				secret = &corev1.Secret{Data: map[string][]byte{v1alpha1.BootstrapTokenKey: []byte(tc.secret)}}
			}
			status := &v1alpha1.TunnelStatus{Tokens: tc.records}
			token, err := config.chooseToken(status, secret, at)
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
			if i := indexToken(status.Tokens, enrol.HashToken(token)); i < 0 || len(status.Tokens) != want {
				t.Errorf("%d records, want %d; the token's is number %d", len(status.Tokens), want, i)
			}
			if wait := config.nextLook(*status, token, at); wait <= 0 || wait > 14*time.Hour {
				t.Errorf("next look after %s", wait)
			}
		})
	}
}

func TestTokenRecordsAreBounded(t *testing.T) {
	config, status, at := testConfig(), &v1alpha1.TunnelStatus{}, time.Now()
	for range 3 * maxTokens {
		if _, err := config.chooseToken(status, nil, at); err != nil {
			t.Fatal(err)
		}
		at = at.Add(time.Second)
	}
	if len(status.Tokens) != maxTokens || !status.Tokens[maxTokens-1].ExpiresAt.After(status.Tokens[0].ExpiresAt.Time) {
		t.Errorf("%d records: %v", len(status.Tokens), status.Tokens)
	}
}
