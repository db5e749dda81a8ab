package collect

import (
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/printable"
	inspectv1 "github.com/fairlead/fairlead/pkg/diagnose/collect/v1"
)

const (
	// maxRefusals bounds how many rejected machines are stored, refusalTime for how long, and maxReason the size of a
	// reason.
	maxRefusals = 64
	refusalTime = 10 * time.Minute
	maxReason   = 300
)

// The subjects of a rejection.
const (
	AboutHandshake = "handshake"
	AboutEnrolment = "enrolment"
)

// Refusal is a machine that was rejected, or that rejected this server. Its identity is not known.
type Refusal struct {
	Server  string
	Address string // of the machine, without the port
	About   string
	Reason  string // in the words of TLS, or of the answer to the machine
	Last    time.Time
	Times   int
}

// Refusals stores the latest rejections. Any client that reaches the public port can cause an entry, so it is small and
// has one entry per machine and subject. It is safe for concurrent use. Its zero value is empty.
type Refusals struct {
	mu  sync.Mutex
	all []Refusal // the newest last
}

// Note stores a rejection. The address may have a port.
func (r *Refusals) Note(now time.Time, address, about string, reason error) {
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	one := Refusal{Address: address, About: about, Reason: printable.Text(reason.Error(), maxReason), Last: now, Times: 1}
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.all, func(o Refusal) bool {
		return o.Address == one.Address &&
			o.About == one.About
	}); i >= 0 {
		one.Times += r.all[i].Times
		r.all = slices.Delete(r.all, i, i+1)
	}
	r.all = append(r.all, one)
	if len(r.all) > maxRefusals {
		r.all = slices.Delete(r.all, 0, 1)
	}
}

// messages returns the rejections of the last minutes.
func (r *Refusals) messages(now time.Time) (all []*inspectv1.Refusal) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.all {
		if now.Sub(one.Last) < refusalTime {
			all = append(
				all,
				&inspectv1.Refusal{
					Address: one.Address,
					About:   one.About,
					Reason:  one.Reason,
					Last:    timestamppb.New(one.Last),
					Times:   uint32(min(one.Times, 1<<30)),
				},
			)
		}
	}
	return all
}

func refusalsOf(server string, messages []*inspectv1.Refusal) (all []Refusal) {
	for _, m := range messages {
		all = append(all, Refusal{
			Server: server, Address: m.GetAddress(), About: m.GetAbout(), Reason: m.GetReason(), Last: timeOf(m.GetLast()),
			Times: int(m.GetTimes()),
		})
	}
	return all
}
