package boot

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/redact"
	"github.com/fairlead/fairlead/pkg/report"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

const (
	// maxPhases is the limit of the server.
	maxPhases = 48
	// maxMessage is its limit for a message.
	maxMessage = 1024
	// afterError is how much of a log after an error belongs to it: kubeadm's advice.
	afterError = 2 << 10
)

// observe reads the files of the machine.
func (r *Reporter) observe(ctx context.Context) observation {
	all := r.reader.log(ctx)
	log := thisBoot(all)
	p := observation{
		cloud: parseCloudInit(r.reader.read(cloudStatusPath)), kubeadm: parseKubeadm(log), log: log,
		sentinel: r.reader.exists(sentinelPath), before: r.reader.bootstrappedBefore(),
		late: r.now().Sub(r.began) >= r.Deadline, deadline: r.Deadline, redacted: &r.redacted,
	}
	kubeadm := len(parseKubeadm(all).phases) > 0 || r.reader.commandsRunKubeadm()
	p.unknown = !p.sentinel && !p.before && !kubeadm && r.reader.commandsRanBefore(p.cloud)
	return p
}

// Observe returns the current state of the boot, without a sequence.
func (r *Reporter) Observe(ctx context.Context) *reportv1.BootReport {
	return r.reportOf(r.observe(ctx))
}

func (r *Reporter) reportOf(p observation) *reportv1.BootReport {
	report := p.report()
	if report = r.confirm(report, p.late); len(report.Phases) > maxPhases {
		report.Phases = report.Phases[len(report.Phases)-maxPhases:]
	}
	report.Machine, report.BootId, report.Version = r.machine(), r.reader.bootID(), r.Version
	return report
}

// confirm reports a failure only when it persists: files are written one after the other, and scripts may retry.
func (r *Reporter) confirm(report *reportv1.BootReport, late bool) *reportv1.BootReport {
	if report.GetState() != reportv1.BootState_BOOT_STATE_FAILED {
		r.failing = time.Time{}
		return report
	}
	now := r.now()
	if r.failing.IsZero() {
		r.failing = now
	}
	if !late && now.Sub(r.failing) < r.pace.grace {
		report.State, report.Tail, report.Message = reportv1.BootState_BOOT_STATE_RUNNING, "", ""
	}
	return report
}

// observation is everything that is known of a boot at one time.
type observation struct {
	cloud    *cloudInit // nil: not running
	kubeadm  kubeadm
	log      string
	sentinel bool
	before   bool // the machine became a Node in an earlier boot
	// unknown is true if the bootstrap began in an earlier boot, and its result is not known: the sentinel file does not
	// outlive a boot, and only kubeadm leaves other files
	unknown  bool
	late     bool
	deadline time.Duration
	redacted *redacted // nil: no cache
}

// redacted caches the last log without secrets: redacting a long log takes half a second, and the log may no longer
// grow.
type redacted struct{ in, out string }

func (r *redacted) text(log string) string {
	if r == nil {
		return redact.Text(log)
	}
	if log != r.in {
		r.in, r.out = log, redact.Text(log)
	}
	return r.out
}

// report derives the report from an observation.
func (p observation) report() *reportv1.BootReport {
	r := &reportv1.BootReport{State: reportv1.BootState_BOOT_STATE_RUNNING}
	if p.cloud != nil {
		r.Phases = append(r.Phases, p.cloud.phases()...)
	}
	r.Phases = append(r.Phases, p.kubeadm.report()...)
	switch {
	case p.sentinel && (p.cloud == nil || p.cloud.ended() || p.late):
		r.State, r.Step, r.Message = reportv1.BootState_BOOT_STATE_SUCCEEDED, "bootstrapped", p.remarks()
	case p.sentinel:
		r.Step = "after kubeadm"
	case p.before:
		r.State, r.Step = reportv1.BootState_BOOT_STATE_SUCCEEDED, "bootstrapped in an earlier boot"
	case p.ended(), p.kubeadm.err != "":
		r.State = reportv1.BootState_BOOT_STATE_FAILED
		r.Step, r.Message = p.failure()
		r.Tail = p.tail()
	default:
		r.Step = p.step()
	}
	r.Step, r.Message = line(r.Step), line(r.Message)
	return r
}

// ended reports whether nothing can follow that changes the result, except for a repair.
func (p observation) ended() bool { return p.cloud != nil && p.cloud.ended() || p.late }

// line returns a text as one line, without secrets.
func line(s string) string {
	s = strings.Join(strings.Fields(redact.Text(s)), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage-3], "") + "..."
	}
	return s
}

// step returns the running step.
func (p observation) step() string {
	switch {
	case len(p.kubeadm.phases) > 0 && !p.kubeadm.done:
		return p.kubeadm.step()
	case p.kubeadm.done:
		return "after kubeadm"
	case p.cloud != nil:
		return "cloud-init " + p.cloud.current()
	}
	return "before kubeadm"
}

// failure returns the failed step, and the cause if the logs state it.
func (p observation) failure() (step, message string) {
	k := &p.kubeadm
	ended := p.cloud != nil && p.cloud.ended()
	switch {
	case k.err != "":
		return k.step(), strings.TrimPrefix(k.err, "error: ")
	case k.done:
		return "after kubeadm", "kubeadm reported success, but " + sentinelName + " is missing"
	case len(k.phases) > 0 && ended:
		return k.step(), "cloud-init has ended, and kubeadm has not succeeded"
	case len(k.phases) > 0:
		return k.step(), fmt.Sprintf("it has not ended within %s", p.deadline)
	case ended:
		if stage, errs := p.cloud.errors(); len(errs) > 0 {
			return "cloud-init " + stage, strings.Join(errs, "; ")
		}
		return "before kubeadm", "cloud-init has ended, and kubeadm has not begun: a command before it ended the script"
	}
	return p.step(), fmt.Sprintf("the boot has not ended within %s: %s does not exist", p.deadline, sentinelName)
}

const sentinelName = "/" + sentinelPath

// remarks returns problems of a boot that has succeeded, or "".
func (p observation) remarks() string {
	if p.cloud == nil {
		return ""
	}
	if !p.cloud.ended() {
		return "the commands after kubeadm have not ended within " + p.deadline.String()
	}
	if stage, errs := p.cloud.errors(); len(errs) > 0 {
		return "kubeadm has succeeded, but cloud-init reports errors in " + stage + ": " + strings.Join(errs, "; ")
	}
	return ""
}

// tail returns the end of the log of the failed step, up to the error and its advice, in whole lines. Secrets are
// redacted before the beginning is cut off: a secret that is cut in half would not be recognised.
func (p observation) tail() string {
	log := p.log
	if k := &p.kubeadm; k.err != "" {
		end := min(len(log), k.errEnd+afterError)
		if i := strings.IndexByte(log[end:], '\n'); i >= 0 {
			log = log[:end+i+1]
		}
	}
	return report.CleanTail(p.redacted.text(log), report.MaxBootTail)
}
