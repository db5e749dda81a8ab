package robustness

import (
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/workspace"
	"github.com/fairlead/fairlead/test/world"
)

// TestCrashesAreExcusedByTheirFaultAlone: a program that had a fault once must not crash for the rest of the run.
func TestCrashesAreExcusedByTheirFaultAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &installation{
			World:   &world.World{Lab: &lab.Lab{Workspace: &workspace.Workspace{Dir: t.TempDir()}}},
			history: NewRecorder(io.Discard), fragile: map[string][]*part{},
		}
		log := in.LogFile("gateway-0")
		must(t, os.MkdirAll(filepath.Dir(log), 0o755))
		write := func(text string) {
			file, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			must(t, err)
			_, err = io.WriteString(file, text)
			must(t, err)
			must(t, file.Close())
		}
		crashed := func() (found []string) {
			in.history = NewRecorder(io.Discard)
			must(t, in.searchCrashes(in.World))
			history, err := in.history.History()
			must(t, err)
			for _, e := range history {
				found = append(found, e.Name+": "+e.Text)
			}
			return found
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if got := crashed(); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("%s: found %q, want %q", what, got, want)
			}
		}
		write("agent starts\n")
		calm := in.mayCrash("gateway-0")
		write("panic: out of memory\n")
		expect("during the fault")
		calm()
		time.Sleep(fragileFor / 2)
		write("Caught Aborted, suspect faulting address 0x463\n")
		time.Sleep(fragileFor)
		synctest.Wait()
		write("agent starts\n")
		expect("soon after it")
		write("panic: nil\nCaught Bus error, suspect faulting address 0x1\n")
		expect("long after it", "gateway-0.log: panic:", "gateway-0.log: suspect faulting address")
		if len(in.fragileParts("gateway-1")) > 0 {
			t.Error("another program may crash")
		}
	})
}

// TestSecretsAreFoundInBase64: a Secret or a kubeconfig in a log holds its key so.
func TestSecretsAreFoundInBase64(t *testing.T) {
	for _, kind := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"} {
		log := base64.StdEncoding.EncodeToString([]byte("-----BEGIN " + kind + "-----\nMIGHAgEA\n"))
		found := 0
		for _, s := range secretTexts() {
			if strings.Contains("client-key-data: "+log, s.text) {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d texts find %q", found, kind)
		}
	}
	certificate := base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nMIIB\n"))
	for _, s := range secretTexts() {
		if strings.Contains(certificate, s.text) {
			t.Errorf("a certificate counts as %s", s.what)
		}
	}
}
