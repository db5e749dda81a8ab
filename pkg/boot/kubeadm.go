package boot

import (
	"regexp"
	"slices"
	"strings"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// kubeadm is how far kubeadm came, by its output.
type kubeadm struct {
	phases []string // in the order in which they began
	failed string   // the phase that it names in its error; empty: none
	err    string   // the error, one line; empty: none
	errEnd int      // where in the log its error ends
	done   bool     // it says that it has succeeded
}

var (
	phaseLine = regexp.MustCompile(`^\[([a-z][a-z0-9-]*)\] `)
	// phaseError is how kubeadm names the phase that failed; before it may be "error: ".
	phaseError = regexp.MustCompile(`error execution phase ([a-z][a-z0-9/-]*): ?(.*)`)
	// noKubeadm is what shells say.
	noKubeadm = regexp.MustCompile(`kubeadm: (?:command )?not found`)
	// firstLine is with what kubeadm begins.
	firstLine = regexp.MustCompile(`^\[(?:init\] Using Kubernetes version|preflight\] Running pre-flight checks)`)
	// otherError ends kubeadm outside of any phase: a config that it does not understand.
	otherError = regexp.MustCompile(`^error: (.+)`)
)

// kubeadmPhases are words in brackets at the beginning of kubeadm's lines that name what it does. Others, such as kubelet-check, say
// more about the one that runs.
var kubeadmPhases = []string{
	"init", "join", "preflight", "certs", "kubeconfig", "etcd", "control-plane", "kubelet-start", "wait-control-plane", "upload-config",
	"upload-certs", "mark-control-plane", "bootstrap-token", "kubelet-finalize", "addons", "discovery", "download-certs",
	"control-plane-join", "check-etcd", "etcd-join", "kubelet-wait-bootstrap",
}

// parseKubeadm reads kubeadm's lines in a log that others write to as well.
func parseKubeadm(log string) kubeadm {
	var k kubeadm
	at := 0
	collecting := false // lines that belong to the error
	for line := range strings.Lines(log) {
		at += len(line)
		text := strings.TrimRight(line, " \r\n")
		found := phaseError.FindStringSubmatch(text)
		word := phaseLine.FindStringSubmatch(text)
		switch {
		case found != nil:
			k.failed, k.err, k.errEnd, k.done, collecting = found[1], text, at, false, true
		case collecting && strings.HasPrefix(strings.TrimSpace(text), "[ERROR "):
			k.err, k.errEnd = k.err+" "+strings.TrimSpace(text), at
		case word != nil && slices.Contains(kubeadmPhases, word[1]):
			collecting = false
			k.begin(word[1], firstLine.MatchString(text))
		case noKubeadm.MatchString(text):
			k.failed, k.err, k.errEnd = "", text, at
		case otherError.MatchString(text) && len(k.phases) == 0 && k.err == "":
			k.err, k.errEnd = text, at
		case strings.Contains(text, "This node has joined the cluster") || strings.Contains(text, "control-plane has initialized successfully"):
			k.done, k.failed, k.err = true, "", ""
		}
	}
	return k
}

// begin notes a phase. Advice that follows an error has the same word in front; another phase, or the first line of kubeadm, is of
// another attempt.
func (k *kubeadm) begin(phase string, first bool) {
	if k.err != "" || k.done {
		if len(k.phases) > 0 && k.phases[len(k.phases)-1] == phase && !first {
			return
		}
		*k = kubeadm{}
	}
	if len(k.phases) == 0 || k.phases[len(k.phases)-1] != phase {
		k.phases = append(k.phases, phase)
	}
}

// step is what runs, or failed.
func (k *kubeadm) step() string {
	switch {
	case k.failed != "":
		return "kubeadm " + k.failed
	case len(k.phases) > 0:
		return "kubeadm " + k.phases[len(k.phases)-1]
	}
	return "kubeadm"
}

func (k *kubeadm) report() []*reportv1.BootPhase {
	var all []*reportv1.BootPhase
	for i, name := range k.phases {
		state := reportv1.BootState_BOOT_STATE_SUCCEEDED
		if last := i == len(k.phases)-1; last && k.err != "" {
			state = reportv1.BootState_BOOT_STATE_FAILED
		} else if last && !k.done {
			state = reportv1.BootState_BOOT_STATE_RUNNING
		}
		all = append(all, &reportv1.BootPhase{Name: "kubeadm " + name, State: state})
	}
	return all
}
