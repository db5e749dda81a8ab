package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReportRejectsInvalidFlags(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "report.yaml")
	if err := os.WriteFile(broken, []byte("tunnelDomain: tunnels.example.com\ntoken: flr1.verysecret\nca: "+
		"none\ngateway: gw.example.com:443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args []string
		want string
	}{
		"two ends":              {[]string{"--failed=x", "--succeeded"}, "give one of them"},
		"a log of nothing":      {[]string{"--log=/x"}, "--log is for --failed"},
		"an end in the back":    {[]string{"--detach", "--succeeded"}, "--detach is for following a boot"},
		"no time":               {[]string{"--deadline=0s"}, "must be more than 0"},
		"no address":            {[]string{"--gateway=gw"}, "--gateway"},
		"no proxy":              {[]string{"--proxy=ftp://x:secretpassword@y"}, "proxy"},
		"a log that is missing": {[]string{"--failed=x", "--log=/nothing/here"}, "no such file"},
		"no file":               {[]string{"--failed=x", "--report-file=/nothing/here", "--timeout=1ms"}, "no such file"},
		"a file without a CA":   {[]string{"--failed=x", "--report-file=" + broken, "--timeout=1ms"}, "ca: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(t.Context(), append([]string{"report"}, tc.args...), &out, &errs); code != 1 ||
				!strings.Contains(errs.String(), tc.want) ||
				strings.Contains(errs.String(), "secret") {
				t.Errorf("code %d, %s", code, errs.String())
			}
		})
	}
}

// TestReportWithoutItsFileEnds shows that an image with the unit does no harm on machines without the file.
func TestReportWithoutItsFileEnds(t *testing.T) {
	root := t.TempDir()
	var out, errs bytes.Buffer
	args := []string{
		"report",
		"--root=" + root,
		"--report-file=" + filepath.Join(root, "report.yaml"),
		"--done-file=" + filepath.Join(root, "done"),
		"--deadline=1ms",
	}
	if code := run(t.Context(), args, &out, &errs); code != 0 ||
		!strings.Contains(errs.String(), "boot reports are not configured on this machine") ||
		strings.Count(errs.String(), "\n") != 1 {
		t.Errorf("code %d, %s", code, errs.String())
	}
}
