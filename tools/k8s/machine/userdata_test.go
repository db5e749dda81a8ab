package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var metaData = map[string]string{"local_hostname": "cp1", "instance_id": "i-1"}

func TestParseUserData(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("zipped"))
	_ = z.Close()
	data := `## template: jinja
#cloud-config

write_files:
-   path: /etc/a
    owner: root:root
    permissions: '0640'
    content: |
      name: '{{ ds.meta_data.local_hostname }}' {{ ds.meta_data["instance_id"] }} {{ v1.local_hostname }} {{ ds.meta_data.none }}
-   path: /etc/b
    encoding: gzip+base64
    append: true
    content: ` + base64.StdEncoding.EncodeToString(zipped.Bytes()) + `
bootcmd:
  - "first"
runcmd:
  - 'kubeadm init && echo done'
  - [echo, "it's"]
ntp:
  enabled: true
users:
  - name: capi
`
	u, err := parseUserData([]byte(data), metaData)
	if err != nil {
		t.Fatal(err)
	}
	if got := u.WriteFiles[0].Content; got != "name: 'cp1' i-1 cp1 CI_MISSING_JINJA_VAR/none\n" {
		t.Errorf("Jinja: %q", got)
	}
	if got, err := u.WriteFiles[1].decode(); err != nil || string(got) != "zipped" || !u.WriteFiles[1].Append {
		t.Errorf("gzip+base64: %q %v", got, err)
	}
	text, err := script(u.RunCmd)
	if err != nil || text != "#!/bin/sh\nkubeadm init && echo done\n'echo' 'it'\\''s'\n" {
		t.Errorf("script: %q %v", text, err)
	}
	if len(u.BootCmd) != 1 {
		t.Errorf("bootcmd: %v", u.BootCmd)
	}
}

func TestParseUserDataRejects(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"an unknown section":        {"#cloud-config\npower_state: {}\n", `section "power_state"`},
		"an unknown field":          {"#cloud-config\nwrite_files: [{path: /a, sauce: b}]\n", "sauce"},
		"another format":            {"{\"ignition\": {}}", "want a cloud-config"},
		"a script":                  {"#!/bin/sh\n", "want a cloud-config"},
		"an unknown encoding":       {"#cloud-config\nwrite_files: [{path: /a, encoding: rot13}]\n", "rot13"},
		"a statement of Jinja":      {"## template: jinja\n#cloud-config\n{% if a %}{% endif %}\n", "no Jinja statements"},
		"an expression of Jinja":    {"## template: jinja\n#cloud-config\nruncmd: ['{{ a | b }}']\n", "{{ a | b }}"},
		"a command that is neither": {"#cloud-config\nruncmd: [{a: b}]\n", "want a string or a list"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseUserData([]byte(test.in), metaData)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A file with Jinja's brackets is a template only if its first line declares that.
func TestNoTemplate(t *testing.T) {
	u, err := parseUserData([]byte("#cloud-config\nruncmd: ['echo {{ .Name }}']\n"), metaData)
	if err != nil || u.RunCmd[0] != "echo {{ .Name }}" {
		t.Errorf("got %v %v", u.RunCmd, err)
	}
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "file")
	for _, f := range []writeFile{
		{Path: path, Content: "one\n", Permissions: "0600"},
		{Path: path, Content: "two\n", Permissions: "0600", Append: true},
	} {
		if err := f.write(); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(path)
	info, _ := os.Stat(path)
	if err != nil || string(data) != "one\ntwo\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("got %q %v %v", data, info, err)
	}
}

// A runcmd script continues after a command that fails, and exits with the code of the last one.
func TestAScriptContinuesAfterAFailedCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runcmd")
	text, err := script([]any{"false", "echo still here"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path).CombinedOutput()
	if err != nil || string(out) != "still here\n" {
		t.Errorf("got %q %v", out, err)
	}
}

func TestImageName(t *testing.T) {
	for image, want := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.37.1": "kube-apiserver", "fairlead-edge": "fairlead-edge",
		"localhost:5000/a/edge@sha256:abc": "edge", "edge:v1@sha256:abc": "edge",
	} {
		if got := imageName(image); got != want {
			t.Errorf("%s: got %s", image, got)
		}
	}
}

func TestImageTag(t *testing.T) {
	for image, want := range map[string]string{
		"registry.k8s.io/kube-apiserver:v1.37.1": "v1.37.1", "fairlead-edge": "",
		"localhost:5000/a/edge@sha256:abc": "", "edge:v1@sha256:abc": "v1",
	} {
		if got := imageTag(image); got != want {
			t.Errorf("%s: got %q", image, got)
		}
	}
}

func TestCRILog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod", "0.log")
	log, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	out := log.stream("stdout")
	_, _ = out.Write([]byte("one\ntw"))
	_, _ = out.Write([]byte("o\nrest"))
	log.Close()
	var text strings.Builder
	if err := printLog(&text, path); err != nil || text.String() != "one\ntwo\nrest" {
		t.Errorf("got %q %v", text.String(), err)
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), " stdout F two\n") ||
		!strings.Contains(string(data), " stdout P rest\n") {
		t.Errorf("got %q %v", data, err)
	}
}
