package boot

import (
	"regexp"
	"slices"
	"strings"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// kubeadm is the progress of kubeadm, from its output.
type kubeadm struct {
	phases []string // in the order of their beginning
	failed string   // the phase named in the error; empty: none
	err    string   // the error, in one line; empty: none
	errEnd int      // offset of the end of the error in the log
	done   bool     // the output reports success
}

var (
	phaseLine = regexp.MustCompile(`^\[([a-z][a-z0-9-]*)\] `)
	// phaseError matches the line with the name of the failed phase. It may follow "error: ".
	phaseError = regexp.MustCompile(`error execution phase ([a-z][a-z0-9/-]*): ?(.*)`)
	// noKubeadm is the error of a shell without kubeadm.
	noKubeadm = regexp.MustCompile(`kubeadm: (?:command )?not found`)
	// firstLine is the first line of kubeadm's output.
	firstLine = regexp.MustCompile(`^\[(?:init\] Using Kubernetes version|preflight\] Running pre-flight checks)`)
	// otherError is the error of kubeadm outside of any phase, for example because of an invalid configuration.
	otherError = regexp.MustCompile(`^error: (.+)`)
)

// kubeadmPhases are the words in brackets at the beginning of kubeadm's lines that name phases. Other words, such as
// kubelet-check, give details of the running phase.
var kubeadmPhases = []string{
	"init", "join", "preflight", "certs", "kubeconfig", "etcd", "control-plane", "kubelet-start", "wait-control-plane",
	"upload-config",
	"upload-certs", "mark-control-plane", "bootstrap-token", "kubelet-finalize", "addons", "discovery", "download-certs",
	"control-plane-join", "check-etcd", "etcd-join", "kubelet-wait-bootstrap",
}

// parseKubeadm parses kubeadm's lines in a log that other programs also write to.
func parseKubeadm(log string) kubeadm {
	var k kubeadm
	at := 0
	collecting := false // following lines belong to the error
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
		case strings.Contains(text, "This node has joined the cluster") || strings.Contains(text, "control-plane has "+
			"initialized successfully"):
			k.done, k.failed, k.err = true, "", ""
		}
	}
	return k
}

// begin records a phase. Advice after an error begins with the word of the same phase. Another phase, or the first
// line of kubeadm, belongs to a new attempt.
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

// step returns the running or failed step.
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
