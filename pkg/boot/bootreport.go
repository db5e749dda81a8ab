// Package boot is the machine's side of boot reports: it follows how a machine becomes a Node, by what cloud-init and kubeadm
// leave behind in files, and tells it to the control channel. In go files, out come reports: which step runs or failed, and the end
// of its log without the secrets. It starts nothing, changes nothing of the boot, and ends by itself.
//
// It decides as Cluster API does: a machine is bootstrapped when there is the sentinel file that the bootstrap provider has it write
// after kubeadm. Everything else only says how far it came.
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

// ErrNotAsked is what Send returns, wrapped, where nobody has asked this machine to report, or not yet: there is nothing to send with.
var ErrNotAsked = errors.New("this machine has nothing to report with")

// Config is what a Reporter stands on. Only Send is needed.
type Config struct {
	// Send sends one report, and has a deadline of its own.
	Send func(ctx context.Context, r *reportv1.BootReport) (enrolclient.Answer, error)
	// Root is before every path: "/" where it is empty. Tests have another.
	Root string
	// Machine and ProviderID say of which Machine this is, where neither its name nor its addresses do.
	Machine, ProviderID string
	Version             string
	// Deadline is after which a boot that has not ended has failed; zero: 30 minutes.
	Deadline time.Duration
	// Repeat is for how long the end is told again and again, so that nobody misses it who is away; zero: 1 hour.
	Repeat time.Duration
	// DoneFile is written when a boot that succeeded was told. While it is there, there is nothing to report. Empty: none.
	DoneFile string
	Log      *slog.Logger

	pace pace // zero: defaultPace
	now  func() time.Time
}

// pace is how quick a Reporter is.
type pace struct {
	poll   time.Duration // how often files are looked at
	grace  time.Duration // for how long a failure may still turn out to be none
	repeat retry.Backoff // of the end
	retry  retry.Backoff // of what was not sent
}

// A look costs some stats, and the end of a log where that has grown. cloud-init writes its status, and ends, before its last
// commands' files need be there.
var defaultPace = pace{
	poll: 2 * time.Second, grace: 20 * time.Second,
	repeat: retry.Backoff{Min: time.Minute, Max: 10 * time.Minute}, retry: retry.Backoff{Min: 2 * time.Second, Max: time.Minute},
}

// Reporter follows one boot.
type Reporter struct {
	Config
	began   time.Time
	failing time.Time // since when it looks like a failure; zero: it does not
	reader  reader
	reasons retry.Reasons

	redacted redacted
}

// New returns a Reporter; Run runs it.
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

// Run follows the boot until it has ended and was told for long enough, or ctx ends, or nobody has asked for it until the deadline. It
// returns nil: neither how the boot ends nor that nobody takes it is an error, because who would start it again for that has it run
// for ever.
func (r *Reporter) Run(ctx context.Context) error {
	if r.DoneFile != "" {
		if _, err := os.Stat(r.DoneFile); err == nil {
			r.Log.Info("this machine has told before that it is bootstrapped: there is nothing to report", "file", r.DoneFile)
			return nil
		}
	}
	var d delivery
	var ended time.Time
	for {
		report, now := r.Look(ctx), r.now()
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
			if d.taken == nil && errors.Is(d.err, ErrNotAsked) && (r.now().Sub(r.began) >= r.Deadline || r.reader.bootstrappedBefore()) {
				r.Log.Info("nobody has asked this machine to report: there is nothing to do", "reason", d.err)
				return nil
			}
		}
		wait := r.pace.poll
		if over(report) {
			wait *= 5 // what could still change is a success that comes late
		}
		if retry.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

// Once tells how a boot ended, which somebody else has found out, and tries until ctx ends.
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

// delivery is what was sent.
type delivery struct {
	taken    *reportv1.BootReport // last; nil: none
	next     time.Time            // when to send though nothing is new, or again
	failures int                  // since then
	repeats  int                  // of the same end
	err      error                // of the last attempt
}

// due says whether a report is to be sent now. After a failure that is not sooner because something is new.
func (d *delivery) due(r *reportv1.BootReport, now time.Time) bool {
	return !now.Before(d.next) || d.failures == 0 && !proto.Equal(r, d.taken)
}

// conclude says so where nobody has heard the end.
func (r *Reporter) conclude(d *delivery) {
	if d.taken == nil || !over(d.taken) {
		r.Log.Warn("nobody has heard how this boot ended: giving up", "error", d.err)
	}
}

// deliver sends a report, and decides when to send the next.
func (r *Reporter) deliver(ctx context.Context, d *delivery, report *reportv1.BootReport) {
	var answer enrolclient.Answer
	if answer, d.err = r.Send(ctx, r.stamp(report)); d.err != nil {
		if ctx.Err() == nil && !errors.Is(d.err, ErrNotAsked) && r.reasons.New(d.err) {
			r.Log.Warn("boot report not taken, trying again", "error", d.err)
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

// retryAfter is the wait after a failure: what the server says, if it says something.
func (r *Reporter) retryAfter(err error, failures int) time.Duration {
	wait := r.pace.retry.Wait(failures)
	var limited *enrolclient.LimitError
	if errors.As(err, &limited) {
		wait = max(wait, min(limited.RetryAfter(), r.pace.retry.Max))
	}
	if errors.Is(err, certs.ErrRefused) {
		wait = max(wait, r.pace.retry.Max/2) // a token that is new may not be known everywhere yet
	}
	return wait
}

// stamp returns a report that comes after those before it.
func (r *Reporter) stamp(report *reportv1.BootReport) *reportv1.BootReport {
	stamped := proto.CloneOf(report)
	stamped.Sequence = r.reader.uptime()
	return stamped
}

// noteDone writes down that a success was told, so that the next boot is not reported as another.
func (r *Reporter) noteDone() {
	if r.DoneFile == "" {
		return
	}
	err := os.MkdirAll(filepath.Dir(r.DoneFile), 0o700)
	if err == nil {
		err = os.WriteFile(r.DoneFile, nil, 0o600)
	}
	if err != nil && r.reasons.New(err) {
		r.Log.Warn("it can't be noted that this machine has reported", "error", err)
	}
}
