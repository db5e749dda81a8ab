// Package boot is the machine's side of boot reports. It follows how a machine becomes a Node, from files that
// cloud-init and kubeadm write, and reports this to the control channel. The input is files; the output is reports:
// which step is running or has failed, and the end of its log without secrets. The package starts nothing, does not
// affect the boot, and ends by itself.
//
// It uses Cluster API's criterion: a machine is bootstrapped when the sentinel file exists that its bootstrap provider
// makes it write after kubeadm. Everything else only shows the progress.
package boot

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
	enrolclient "github.com/fairlead/fairlead/pkg/enrol/client"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// ErrNotAsked is wrapped by an error of Send if this machine has no credentials for reports, or not yet.
var ErrNotAsked = errors.New("this machine has no credentials to report with")

// Config configures a Reporter. Only Send is required.
type Config struct {
	// Send sends one report. It must have its own timeout.
	Send func(ctx context.Context, r *reportv1.BootReport) (enrolclient.Answer, error)
	// Root is the prefix of every path; "/" if it is empty. Tests set it.
	Root string
	// Machine and ProviderID identify the Machine if neither its name nor its addresses do.
	Machine, ProviderID string
	Version             string
	// Deadline is how long a boot may take before it counts as failed; zero: 30 minutes.
	Deadline time.Duration
	// Repeat is how long the result is reported again, for controllers that are unavailable; zero: 1 hour.
	Repeat time.Duration
	// DoneFile is written after a successful boot was reported. While it exists, nothing is reported. Empty: no file.
	DoneFile string
	Log      *slog.Logger

	pace pace // zero: defaultPace
	now  func() time.Time
}

// pace contains the intervals of a Reporter.
type pace struct {
	poll   time.Duration // interval between observations
	grace  time.Duration // how long a failure may still turn into a success
	repeat retry.Backoff // of the result
	retry  retry.Backoff // of failed attempts to send
}

// An observation costs some stats, and reads the end of a log that has grown. cloud-init may write its status and end
// before the files of its last commands exist.
var defaultPace = pace{
	poll: 2 * time.Second, grace: 20 * time.Second,
	repeat: retry.Backoff{
		Min: time.Minute,
		Max: 10 * time.Minute,
	}, retry: retry.Backoff{Min: 2 * time.Second, Max: time.Minute},
}

// Reporter follows one boot.
type Reporter struct {
	Config
	began   time.Time
	failing time.Time // since when the boot looks failed; zero: it does not
	reader  reader
	reasons retry.Reasons

	redacted redacted
}

// New returns a Reporter. Run runs it.
func New(c Config) *Reporter {
	if c.pace == (pace{}) {
		c.pace = defaultPace
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Deadline, c.Repeat = cmp.Or(c.Deadline, 30*time.Minute), cmp.Or(c.Repeat, time.Hour)
	return &Reporter{Config: c, began: c.now(), reader: reader{root: cmp.Or(c.Root, "/")}}
}

// Run follows the boot until its result has been reported for long enough, or ctx ends. If the machine has no
// credentials, it returns when the deadline has passed, or at once if the machine was bootstrapped in an earlier boot.
// It reports nothing if the bootstrap began in an earlier boot and its result is not known. It always returns nil:
// neither a failed boot nor a missing receiver is an error, because a supervisor that restarts the process after errors
// would then run it for ever.
func (r *Reporter) Run(ctx context.Context) error {
	if r.DoneFile != "" {
		if _, err := os.Stat(r.DoneFile); err == nil {
			r.Log.Info("success was reported before: nothing to report", "file", r.DoneFile)
			return nil
		}
	}
	var d delivery
	var ended time.Time
	for {
		p := r.observe(ctx)
		if p.unknown {
			if p.ended() {
				r.Log.Info("the bootstrap began in an earlier boot, and its result is not known: nothing to report")
				return nil
			}
			if retry.Sleep(ctx, r.pace.poll) != nil {
				return nil
			}
			continue
		}
		report, now := r.reportOf(p), r.now()
		switch {
		case !over(report):
			ended = time.Time{}
		case ended.IsZero():
			ended = now
		case now.Sub(ended) >= r.Repeat:
			r.conclude(&d)
			return nil
		}
		if d.due(report, now) {
			r.deliver(ctx, &d, report)
			if d.taken == nil && errors.Is(d.err, ErrNotAsked) &&
				(r.now().Sub(r.began) >= r.Deadline || r.reader.bootstrappedBefore()) {
				r.Log.Info("boot reports are not configured on this machine: nothing to do", "reason", d.err)
				return nil
			}
		}
		wait := r.pace.poll
		if over(report) {
			wait *= 5 // only a late success can still change the result
		}
		if retry.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// Once reports a given result of a boot. It retries until the report is accepted or refused, or ctx ends.
func (r *Reporter) Once(ctx context.Context, report *reportv1.BootReport) error {
	report.Machine, report.BootId, report.Version = r.machine(), r.reader.bootID(), r.Version
	for failures := 0; ; failures++ {
		_, err := r.Send(ctx, r.stamp(report))
		if err == nil || errors.Is(err, certs.ErrRefused) {
			return err
		}
		if retry.Sleep(ctx, r.retryAfter(err, failures)) != nil {
			return err
		}
	}
}

func over(r *reportv1.BootReport) bool {
	return r.GetState() != reportv1.BootState_BOOT_STATE_RUNNING
}

// delivery is the state of sending.
type delivery struct {
	taken    *reportv1.BootReport // last accepted report; nil: none
	next     time.Time            // when to send without a change, or to retry
	failures int                  // since the last success
	repeats  int                  // of the same result
	err      error                // of the last attempt
}

// due reports whether a report must be sent now. After a failure a change does not make it due earlier.
func (d *delivery) due(r *reportv1.BootReport, now time.Time) bool {
	return !now.Before(d.next) || d.failures == 0 && !proto.Equal(r, d.taken)
}

// conclude logs if the result was never accepted.
func (r *Reporter) conclude(d *delivery) {
	if d.taken == nil || !over(d.taken) {
		r.Log.Warn("result of the boot was not accepted, giving up", "error", d.err)
	}
}

// deliver sends a report, and decides when to send the next.
func (r *Reporter) deliver(ctx context.Context, d *delivery, report *reportv1.BootReport) {
	var answer enrolclient.Answer
	if answer, d.err = r.Send(ctx, r.stamp(report)); d.err != nil {
		if ctx.Err() == nil && !errors.Is(d.err, ErrNotAsked) && r.reasons.New(d.err) {
			r.Log.Warn("cannot send boot report, retrying", "error", d.err)
		}
		d.next = r.now().Add(r.retryAfter(d.err, d.failures))
		d.failures++
		return
	}
	if d.taken == nil || !over(d.taken) {
		d.repeats = 0
	}
	if d.taken == nil || d.taken.GetStep() != report.GetStep() || d.taken.GetState() != report.GetState() {
		r.Log.Info("boot reported", "step", report.GetStep(), "state", report.GetState().String())
	}
	d.taken, d.failures = report, 0
	d.next = r.now().Add(answer.Next)
	if over(report) {
		d.next = r.now().Add(max(answer.Next/2, r.pace.repeat.Wait(d.repeats)))
		d.repeats++
	}
	if report.GetState() == reportv1.BootState_BOOT_STATE_SUCCEEDED && answer.Watched {
		r.noteDone()
	}
}

// retryAfter returns the wait after a failure: at least the wait that the server requests, within the maximum of the
// backoff.
func (r *Reporter) retryAfter(err error, failures int) time.Duration {
	wait := r.pace.retry.Wait(failures)
	var limited *enrolclient.LimitError
	if errors.As(err, &limited) {
		wait = max(wait, min(limited.RetryAfter(), r.pace.retry.Max))
	}
	if errors.Is(err, certs.ErrRefused) {
		wait = max(wait, r.pace.retry.Max/2) // a new token may not be known to every server yet
	}
	return wait
}

// stamp returns a copy of a report with the next sequence.
func (r *Reporter) stamp(report *reportv1.BootReport) *reportv1.BootReport {
	stamped := proto.CloneOf(report)
	stamped.Sequence = r.reader.uptime()
	return stamped
}

// noteDone records that a success was reported, so that the next boot is not reported as another bootstrap.
func (r *Reporter) noteDone() {
	if r.DoneFile == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(r.DoneFile), 0o700)
	if err == nil {
		err = os.WriteFile(r.DoneFile, nil, 0o600)
	}
	if err != nil && r.reasons.New(err) {
		r.Log.Warn("cannot persist that this machine has reported", "error", err)
	}
}
