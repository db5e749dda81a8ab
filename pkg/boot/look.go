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
	// maxPhases is what the server keeps.
	maxPhases = 48
	// maxSaid is what it keeps of a message.
	maxSaid = 1024
	// afterError is how much of a log after an error belongs to it: kubeadm's advice.
	afterError = 2 << 10
)

// Look returns how the boot is now, without a sequence.
func (r *Reporter) Look(ctx context.Context) *reportv1.BootReport {
	log := thisBoot(r.reader.log(ctx))
	p := picture{
		cloud: parseCloudInit(r.reader.read(cloudStatusPath)), kubeadm: parseKubeadm(log), log: log,
		sentinel: r.reader.exists(sentinelPath), before: r.reader.bootstrappedBefore(),
		late: r.now().Sub(r.began) >= r.Deadline, deadline: r.Deadline, redacted: &r.redacted,
	}
	report := p.report()
	if report = r.doubt(report, p.late); len(report.Phases) > maxPhases {
		report.Phases = report.Phases[len(report.Phases)-maxPhases:]
	}
	report.Machine, report.BootId, report.Version = r.machine(), r.reader.bootID(), r.Version
	return report
}

// doubt takes a failure for one only when it stays: files are written one after the other, and scripts may try again.
func (r *Reporter) doubt(report *reportv1.BootReport, late bool) *reportv1.BootReport {
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

// picture is all that is known of a boot at one time.
type picture struct {
	cloud    *cloudInit // nil: there is none
	kubeadm  kubeadm
	log      string
	sentinel bool
	before   bool // the machine became a Node in an earlier boot
	late     bool
	deadline time.Duration
	redacted *redacted // nil: nothing is remembered
}

// redacted is the last log that secrets were taken out of: that takes half a second for a long one, which may not grow any more.
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

// report decides what is so.
func (p picture) report() *reportv1.BootReport {
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
	case p.cloud != nil && p.cloud.ended(), p.kubeadm.err != "", p.late:
		r.State = reportv1.BootState_BOOT_STATE_FAILED
		r.Step, r.Message = p.failure()
		r.Tail = p.tail()
	default:
		r.Step = p.step()
	}
	r.Step, r.Message = line(r.Step), line(r.Message)
	return r
}

// line makes one line of a text, without secrets.
func line(s string) string {
	s = strings.Join(strings.Fields(redact.Text(s)), " ")
	if len(s) > maxSaid {
		s = strings.ToValidUTF8(s[:maxSaid-3], "") + "..."
	}
	return s
}

// step is what runs.
func (p picture) step() string {
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

// failure is which step failed, and why as far as that is said.
func (p picture) failure() (step, message string) {
	k := &p.kubeadm
	ended := p.cloud != nil && p.cloud.ended()
	switch {
	case k.err != "":
		return k.step(), strings.TrimPrefix(k.err, "error: ")
	case k.done:
		return "after kubeadm", "kubeadm says that it has succeeded, but " + sentinelName + " is missing"
	case len(k.phases) > 0 && ended:
		return k.step(), "cloud-init has ended, and kubeadm has not succeeded"
	case len(k.phases) > 0:
		return k.step(), fmt.Sprintf("it has not ended within %s", p.deadline)
	case ended:
		if stage, errs := p.cloud.errors(); len(errs) > 0 {
			return "cloud-init " + stage, strings.Join(errs, "; ")
		}
		return "before kubeadm", "cloud-init has ended, and kubeadm has not begun: one of the commands before it has ended the script"
	}
	return p.step(), fmt.Sprintf("no sign of the end within %s: there is no %s", p.deadline, sentinelName)
}

const sentinelName = "/" + sentinelPath

// remarks are what somebody may want to know of a boot that has succeeded.
func (p picture) remarks() string {
	if p.cloud == nil {
		return ""
	}
	if !p.cloud.ended() {
		return "what follows kubeadm has not ended within " + p.deadline.String()
	}
	if stage, errs := p.cloud.errors(); len(errs) > 0 {
		return "kubeadm has succeeded, but cloud-init tells of errors in " + stage + ": " + strings.Join(errs, "; ")
	}
	return ""
}

// tail is the end of the log of the step that failed: up to the error and what belongs to it, whole lines. Secrets go before anything is
// cut off its beginning: what is left of one that was cut in half does not look like one.
func (p picture) tail() string {
	log := p.log
	if k := &p.kubeadm; k.err != "" {
		end := min(len(log), k.errEnd+afterError)
		if i := strings.IndexByte(log[end:], '\n'); i >= 0 {
			log = log[:end+i+1]
		}
	}
	return report.CleanTail(p.redacted.text(log), report.MaxBootTail)
}
