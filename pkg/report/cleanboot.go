package report

import (
	"cmp"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/printable"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// A boot report is bounded like all external input: each part, and the whole.
const (
	// MaxBootReport is the most bytes of a whole report, and the largest message of a caller without a certificate.
	MaxBootReport = 32 << 10
	// MaxBootTail is how much of the end of a log is stored.
	MaxBootTail   = 8 << 10
	maxBootPhases = 48 // cloud-init has 4, kubeadm about 20
)

// HostOf returns the key of a machine within its workload cluster: the hostname and, if known, a unique id, because a
// hostname may be localhost.
func HostOf(m *reportv1.Machine) string {
	unique := cmp.Or(m.GetSystemUuid(), m.GetMachineId())
	if unique == "" {
		return m.GetHostname()
	}
	return m.GetHostname() + " " + unique
}

// CheckBoot returns why a report is invalid, beyond what CleanBoot corrects. The error is a gRPC status.
func CheckBoot(r *reportv1.BootReport) error {
	if size := proto.Size(r); size > MaxBootReport {
		return status.Errorf(codes.InvalidArgument, "a report of %d bytes is too large", size)
	}
	switch r.GetState() {
	case reportv1.BootState_BOOT_STATE_RUNNING, reportv1.BootState_BOOT_STATE_SUCCEEDED,
		reportv1.BootState_BOOT_STATE_FAILED:
	default:
		return status.Error(codes.InvalidArgument, "the report has no state")
	}
	m := r.GetMachine()
	if !IsWord(m.GetHostname(), maxName) {
		return status.Errorf(codes.InvalidArgument, "the report has no hostname of one word and at most %d bytes", maxName)
	}
	for what, word := range map[string]string{
		"boot id": r.GetBootId(), "system UUID": m.GetSystemUuid(), "machine id": m.GetMachineId(), "Machine": m.GetName(),
		"provider id": m.GetProviderId(),
	} {
		if word != "" && !IsWord(word, 2*maxName) {
			return status.Errorf(codes.InvalidArgument, "the report's %s is not one word of at most %d bytes", what, 2*maxName)
		}
	}
	return nil
}

// CleanBoot returns the part of a report that is stored, field by field, so that unknown fields are dropped.
func CleanBoot(r *reportv1.BootReport) *reportv1.BootReport {
	m := r.GetMachine()
	clean := &reportv1.BootReport{
		BootId: r.GetBootId(), Sequence: r.GetSequence(), State: r.GetState(),
		Version: printable.Text(r.GetVersion(), maxWord),
		Step:    printable.Text(r.GetStep(), maxName), Message: printable.Text(r.GetMessage(), MaxText),
		Tail: CleanTail(r.GetTail(), MaxBootTail),
		Machine: &reportv1.Machine{
			Hostname: m.GetHostname(), ProviderId: m.GetProviderId(), SystemUuid: m.GetSystemUuid(), MachineId: m.GetMachineId(),
			Name: m.GetName(),
		},
	}
	clean.Machine.Addresses = cleanAddresses(m.GetAddresses())
	for _, p := range r.GetPhases() {
		if len(clean.Phases) < maxBootPhases {
			clean.Phases = append(clean.Phases, &reportv1.BootPhase{
				Name: printable.Text(p.GetName(), maxName), State: p.GetState(), Started: validTime(p.GetStarted()),
				Ended: validTime(p.GetEnded()),
			})
		}
	}
	return clean
}

func validTime(t *timestamppb.Timestamp) *timestamppb.Timestamp {
	if t == nil || t.CheckValid() != nil {
		return nil
	}
	return timestamppb.New(t.AsTime())
}

// CleanTail returns the end of a log: at most that many bytes, in whole lines if there are any. Unprintable runes
// become spaces, except line ends and tabs.
func CleanTail(s string, most int) string {
	out := make([]byte, 0, min(len(s), 4*most))
	for _, r := range s {
		switch {
		case r == '\r': // of progress bars and serial lines
		case r == '\n' || r == '\t' || unicode.IsPrint(r) && r != utf8.RuneError:
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, ' ')
		}
	}
	if len(out) <= most {
		return string(out)
	}
	cut := len(out) - most
	for i := cut; i < len(out) && i < cut+most/2; i++ {
		if out[i-1] == '\n' {
			return string(out[i:])
		}
	}
	for cut < len(out) && !utf8.RuneStart(out[cut]) {
		cut++
	}
	return string(out[cut:])
}
