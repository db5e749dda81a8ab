package robustness

import (
	"encoding/base64"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/test/world"
)

// secret is a text that no log may contain, and what it belongs to.
type secret struct{ text, what string }

// secretTexts returns the begin of each kind of secret.
func secretTexts() []secret {
	all := []secret{
		{"PRIVATE KEY", "a private key"}, {"eyJhbGciOi", "a token of a ServiceAccount"}, {"fl1.", "a bootstrap token"},
	}
	for _, kind := range []string{"", "EC ", "RSA "} {
		all = append(all, secret{inBase64("-----BEGIN " + kind + "PRIVATE KEY"), "a private key in base64"})
	}
	return all
}

// inBase64 returns how the base64 of something begins that begins with a text, such as the data of a Secret. What
// follows the text does not change the groups of three bytes that it fills.
func inBase64(text string) string {
	return base64.StdEncoding.EncodeToString([]byte(text[:len(text)/3*3]))
}

// crashes are what a log contains if a program of Go or an Envoy has crashed by itself. Envoy writes the last one at
// each fatal signal, also after an assertion of its own.
var crashes = []string{
	"\npanic: ", "Observed a panic in reconciler", "\nfatal error: ", "assert failure", "suspect faulting address",
}

// fragileFor is how long a program may still crash because of a fault that is over: it may have noticed it late.
const fragileFor = 10 * time.Second

// searchLogs records which logs contain a secret, without the secret, or say that a program has crashed when it may
// not.
func (in *installation) searchLogs() error {
	all := []*world.World{in.World}
	if in.second != nil && in.second.started {
		all = append(all, &world.World{Lab: in.second.Lab})
	}
	secrets := secretTexts()
	var texts []string
	for _, s := range secrets {
		texts = append(texts, s.text)
	}
	var errs []error
	for _, w := range all {
		found, err := w.LogsWith(nil, texts...)
		for _, f := range found {
			in.history.Add(Entry{Kind: KindSecret, Name: f.Log, Text: secrets[f.Text].what})
		}
		errs = append(errs, err, in.searchCrashes(w))
	}
	return errors.Join(errs...)
}

func (in *installation) searchCrashes(w *world.World) error {
	logs, err := filepath.Glob(w.LogFile("*"))
	if err != nil {
		return err
	}
	for _, log := range logs {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		name := filepath.Base(log)
		var fragile []part
		if w == in.World { // nothing fails in the second installation
			fragile = in.fragileParts(strings.TrimSuffix(name, ".log"))
		}
		for _, crash := range crashes {
			if containsOutside(string(text), crash, fragile) {
				in.history.Add(Entry{Kind: KindCrashed, Name: name, Text: strings.TrimSpace(crash)})
			}
		}
	}
	return nil
}

// part is a part of a log, in bytes.
type part struct{ from, to int64 }

// containsOutside reports whether a log contains a text that does not end in one of some parts. It may begin before: a
// crash begins with the end of the line that was written last.
func containsOutside(log, text string, parts []part) bool {
	for end := 0; ; {
		next := strings.Index(log[end:], text)
		if next < 0 {
			return false
		}
		end += next + len(text)
		last := int64(end - 1)
		if !slices.ContainsFunc(parts, func(p part) bool { return p.from <= last && last < p.to }) {
			return true
		}
	}
}

// fragileParts returns the parts of a log in which its program may crash.
func (in *installation) fragileParts(log string) (all []part) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, p := range in.fragile[log] {
		all = append(all, *p)
	}
	return all
}

// mayCrash records that a program and its Envoy, which have a log together, may crash from now on, until a while after
// the returned function is called.
func (in *installation) mayCrash(log string) (calm func()) {
	p := &part{in.logSize(log), math.MaxInt64}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.fragile[log] = append(in.fragile[log], p)
	return func() {
		time.AfterFunc(fragileFor, func() {
			size := in.logSize(log)
			in.mu.Lock()
			defer in.mu.Unlock()
			p.to = size
		})
	}
}

// logSize returns the size of a log, or 0 if there is none.
func (in *installation) logSize(log string) int64 {
	info, err := os.Stat(in.LogFile(log))
	if err != nil {
		return 0
	}
	return info.Size()
}
