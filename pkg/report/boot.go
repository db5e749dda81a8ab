package report

import (
	"cmp"
	"net/netip"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

// What a machine says of its boot is bounded like all that comes from outside: each part, and what all parts are together.
const (
	// MaxBootReport is what a whole report may have. It is also the largest message of a caller without a certificate.
	MaxBootReport = 32 << 10
	// MaxBootTail is what is kept of the end of a log.
	MaxBootTail   = 8 << 10
	maxBootPhases = 48 // cloud-init has 4, kubeadm about 20
	maxAddresses  = 32 // of one machine
)

// bootBounds are how much a hub keeps of boots, and a view of those of all hubs. A token can't take the place of other workload clusters' machines before it has
// filled what is its own.
type bootBounds struct {
	machines, bytes       int // of one tunnel
	allMachines, allBytes int
	keep                  time.Duration // after it came
}

// A machine that is booting has about 1 KiB to say, one that failed up to 10 KiB. 1,000 machines of one workload cluster may boot at
// the same time. A machine goes on saying how its boot ended for less than keep.
var defaultBootBounds = bootBounds{machines: 1000, bytes: 4 << 20, allMachines: 20_000, allBytes: 64 << 20, keep: 2 * time.Hour}

// boots are the latest reports of machines that boot, by tunnel id and machine. It is not safe for concurrent use.
type boots struct {
	bounds          bootBounds
	tunnels         map[string]*tunnelBoots
	machines, bytes int
	swept           time.Time
}

type tunnelBoots struct {
	machines map[string]*boot
	bytes    int
}

type boot struct {
	received time.Time
	report   *reportv1.BootReport // never changed: watchers may be sending it
	size     int
}

func newBoots(b bootBounds) *boots { return &boots{bounds: b, tunnels: map[string]*tunnelBoots{}} }

// Boot takes what a machine of a tunnel says, whose token was checked, and returns whether somebody hears of it. An error is a
// gRPC status.
func (h *Hub) Boot(id string, r *reportv1.BootReport) (watched bool, err error) {
	if err := checkBoot(r); err != nil {
		return false, err
	}
	clean := cleanBoot(r)
	host := hostOf(clean.GetMachine())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.boots.put(id, host, clean, h.now()) {
		h.changed(changeKey{kind: kindBoot, pair: pair{host, id}})
	}
	return len(h.watchers) > 0, nil
}

// put keeps a report, and says whether it is news. One that was overtaken is none. One that says the same again is: it is a
// sign of life.
func (b *boots) put(id, host string, r *reportv1.BootReport, now time.Time) bool {
	b.sweep(now)
	t := b.tunnels[id]
	if t == nil {
		t = &tunnelBoots{machines: map[string]*boot{}}
		b.tunnels[id] = t
	}
	if old := t.machines[host]; old != nil {
		if old.report.GetBootId() == r.GetBootId() && old.report.GetSequence() > r.GetSequence() {
			return false
		}
		b.remove(id, host)
		b.tunnels[id] = t
	}
	size := proto.Size(r)
	for len(t.machines) > 0 && (len(t.machines) >= b.bounds.machines || t.bytes+size > b.bounds.bytes) {
		b.remove(id, t.oldest())
	}
	for b.machines > 0 && (b.machines >= b.bounds.allMachines || b.bytes+size > b.bounds.allBytes) {
		b.removeOldest()
	}
	b.tunnels[id] = t // which may have become empty on the way
	t.machines[host] = &boot{received: now, report: r, size: size}
	t.bytes += size
	b.machines++
	b.bytes += size
	return true
}

func (b *boots) get(p pair) *boot {
	if t := b.tunnels[p.id]; t != nil {
		return t.machines[p.node]
	}
	return nil
}

func (b *boots) remove(id, host string) {
	t := b.tunnels[id]
	size := t.machines[host].size
	delete(t.machines, host)
	t.bytes -= size
	b.machines--
	b.bytes -= size
	if len(t.machines) == 0 {
		delete(b.tunnels, id)
	}
}

// oldest is whose report came first.
func (t *tunnelBoots) oldest() (host string) {
	var at time.Time
	for name, m := range t.machines {
		if host == "" || m.received.Before(at) {
			host, at = name, m.received
		}
	}
	return host
}

// removeOldest makes room at the cost of the tunnel that takes most.
func (b *boots) removeOldest() {
	most := ""
	for id, t := range b.tunnels {
		if most == "" || t.bytes > b.tunnels[most].bytes {
			most = id
		}
	}
	b.remove(most, b.tunnels[most].oldest())
}

// sweep forgets what is old, from time to time.
func (b *boots) sweep(now time.Time) {
	if now.Sub(b.swept) < b.bounds.keep/60 {
		return
	}
	b.swept = now
	for id, t := range b.tunnels {
		for host, m := range t.machines {
			if now.Sub(m.received) > b.bounds.keep {
				b.remove(id, host)
			}
		}
	}
}

// hostOf is what tells machines of one workload cluster apart: a name that people know, and what is unique of it, where it is known,
// because a name may be localhost.
func hostOf(m *reportv1.Machine) string {
	unique := cmp.Or(m.GetSystemUuid(), m.GetMachineId())
	if unique == "" {
		return m.GetHostname()
	}
	return m.GetHostname() + " " + unique
}

// checkBoot says what is wrong with a report, beyond what cleanBoot can put right. An error is a gRPC status.
func checkBoot(r *reportv1.BootReport) error {
	if size := proto.Size(r); size > MaxBootReport {
		return status.Errorf(codes.InvalidArgument, "a report of %d bytes is too large", size)
	}
	switch r.GetState() {
	case reportv1.BootState_BOOT_STATE_RUNNING, reportv1.BootState_BOOT_STATE_SUCCEEDED, reportv1.BootState_BOOT_STATE_FAILED:
	default:
		return status.Error(codes.InvalidArgument, "the report has no state")
	}
	m := r.GetMachine()
	if !isWord(m.GetHostname(), maxName) {
		return status.Errorf(codes.InvalidArgument, "the report has no hostname that is a word of at most %d bytes", maxName)
	}
	for what, word := range map[string]string{
		"boot id": r.GetBootId(), "system UUID": m.GetSystemUuid(), "machine id": m.GetMachineId(), "Machine": m.GetName(), "provider id": m.GetProviderId(),
	} {
		if word != "" && !isWord(word, 2*maxName) {
			return status.Errorf(codes.InvalidArgument, "the report's %s is not a word of at most %d bytes", what, 2*maxName)
		}
	}
	return nil
}

// cleanBoot returns what is kept of a report: field by field, so that nothing is kept that is not known here.
func cleanBoot(r *reportv1.BootReport) *reportv1.BootReport {
	m := r.GetMachine()
	clean := &reportv1.BootReport{
		BootId: r.GetBootId(), Sequence: r.GetSequence(), State: r.GetState(), Version: text(r.GetVersion(), maxWord),
		Step: text(r.GetStep(), maxName), Message: text(r.GetMessage(), maxText), Tail: CleanTail(r.GetTail(), MaxBootTail),
		Machine: &reportv1.Machine{Hostname: m.GetHostname(), ProviderId: m.GetProviderId(), SystemUuid: m.GetSystemUuid(), MachineId: m.GetMachineId(), Name: m.GetName()},
	}
	for _, a := range m.GetAddresses() {
		if ip, err := netip.ParseAddr(a); err == nil && ip.Zone() == "" && len(clean.Machine.Addresses) < maxAddresses {
			clean.Machine.Addresses = append(clean.Machine.Addresses, ip.Unmap().String())
		}
	}
	for _, p := range r.GetPhases() {
		if len(clean.Phases) < maxBootPhases {
			clean.Phases = append(clean.Phases, &reportv1.BootPhase{
				Name: text(p.GetName(), maxName), State: p.GetState(), Started: validTime(p.GetStarted()), Ended: validTime(p.GetEnded()),
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

// CleanTail returns the end of a log without anything that can't be printed but line ends and tabs, and at most that many bytes of
// it: whole lines, where there are any.
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
