package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/pkg/model"
	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

func bootOf(host string, sequence uint64, step string) *reportv1.BootReport {
	return &reportv1.BootReport{
		BootId: "b", Sequence: sequence, State: reportv1.BootState_BOOT_STATE_RUNNING, Step: step, Machine: &reportv1.Machine{Hostname: host},
	}
}

// TestBootsReachTheController has a real hub behind TLS that restarts, and a view.
func TestBootsReachTheController(t *testing.T) {
	w := newWorld(t)
	p := w.place(t)
	controller := model.ControllerSubject()
	var mu sync.Mutex
	told := map[string]int{}
	view := NewView(func(context.Context) ([]string, error) { return []string{p.address}, nil },
		func(address string) (*grpc.ClientConn, error) { return w.dial(t, &controller, address), nil }, func(string) {}, w.log)
	view.OnBoot(func(id string) {
		mu.Lock()
		defer mu.Unlock()
		told[id]++
	})
	if watched, err := p.hub.Boot(idA, bootOf("m1", 1, "before")); err != nil || watched {
		t.Errorf("watched %v, %v", watched, err)
	}
	background(t, view.Run)
	step := func(host, want string) {
		t.Helper()
		eventually.True(t, patience, want, func() error {
			boots, _ := view.Boots(idA)
			for _, b := range boots {
				if b.Report.GetMachine().GetHostname() == host && b.Report.GetStep() == want && time.Since(b.Received) < time.Minute {
					return nil
				}
			}
			return fmt.Errorf("boots %v", boots)
		})
	}
	step("m1", "before")
	if watched, err := p.hub.Boot(idA, bootOf("m1", 2, "after")); err != nil || !watched {
		t.Errorf("watched %v, %v", watched, err)
	}
	step("m1", "after")
	if _, err := p.hub.Boot(idA, bootOf("m1", 1, "overtaken")); err != nil {
		t.Error(err)
	}
	if _, err := p.hub.Boot(idA, bootOf("m2", 1, "second")); err != nil {
		t.Error(err)
	}
	step("m2", "second")
	step("m1", "after")
	if other, _ := view.Boots(idB); other != nil {
		t.Errorf("another tunnel has %v", other)
	}
	mu.Lock()
	if told[idA] == 0 || told[idB] != 0 {
		t.Errorf("told %v", told)
	}
	mu.Unlock()

	p.stop()
	p.start(t) // it knows nothing
	eventually.True(t, patience, "all is known again", func() error {
		if _, known := view.Boots(idA); !known {
			return errors.New("not yet")
		}
		return nil
	})
	step("m1", "after")
	if _, err := p.hub.Boot(idA, bootOf("m1", 3, "again")); err != nil {
		t.Error(err)
	}
	step("m1", "again")
}

func TestAnotherBootBeginsAnew(t *testing.T) {
	h := newWorld(t).place(t).hub
	for _, r := range []*reportv1.BootReport{bootOf("m", 900, "first"), {BootId: "c", Sequence: 5, State: reportv1.BootState_BOOT_STATE_FAILED, Step: "second", Machine: &reportv1.Machine{Hostname: "m"}}} {
		if _, err := h.Boot(idA, r); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.boots.get(pair{"m", idA}); got.report.GetStep() != "second" {
		t.Errorf("got %v", got.report)
	}
}

func TestBootsAreBounded(t *testing.T) {
	now := time.Now()
	b := newBoots(bootBounds{machines: 10, bytes: 10_000, allMachines: 25, allBytes: 100_000, keep: time.Hour})
	put := func(id, host string, tail int) {
		t.Helper()
		now = now.Add(time.Second)
		b.put(id, host, &reportv1.BootReport{Tail: strings.Repeat("x", tail)}, now)
		machines, size := 0, 0
		for _, tunnel := range b.tunnels {
			own := 0
			for _, m := range tunnel.machines {
				own += m.size
			}
			if len(tunnel.machines) == 0 || len(tunnel.machines) > 10 || own != tunnel.bytes || own > 10_000 {
				t.Fatalf("%d machines of %d bytes, counted as %d", len(tunnel.machines), own, tunnel.bytes)
			}
			machines, size = machines+len(tunnel.machines), size+own
		}
		if machines != b.machines || size != b.bytes || machines > 25 || size > 100_000 {
			t.Fatalf("%d machines of %d bytes, counted as %d of %d", machines, size, b.machines, b.bytes)
		}
	}
	put(idA, "first", 1)
	for i := range 100 {
		put(idB, fmt.Sprint("greedy-", i), i*50)
	}
	if b.get(pair{"first", idA}) == nil {
		t.Error("one tunnel has pushed out another, which takes less")
	}
	put(idB, "greedy-99", 9_000) // the same again, in the place of all of its own
	for i := range 100 {
		put(fmt.Sprint("id", i), "m", 100)
	}
	if b.machines != 25 {
		t.Errorf("%d machines", b.machines)
	}
	now = now.Add(2 * time.Hour)
	put(idA, "m", 1)
	if b.machines != 1 || len(b.tunnels) != 1 {
		t.Errorf("%d old ones are kept", b.machines)
	}
}

func TestCheckBoot(t *testing.T) {
	good := bootOf("m", 1, "s")
	tests := map[string]struct {
		change func(*reportv1.BootReport)
		want   codes.Code
	}{
		"good":                  {func(*reportv1.BootReport) {}, codes.OK},
		"too large":             {func(r *reportv1.BootReport) { r.Tail = strings.Repeat("x", MaxBootReport) }, codes.InvalidArgument},
		"no state":              {func(r *reportv1.BootReport) { r.State = 0 }, codes.InvalidArgument},
		"a state of the future": {func(r *reportv1.BootReport) { r.State = 99 }, codes.InvalidArgument},
		"no machine":            {func(r *reportv1.BootReport) { r.Machine = nil }, codes.InvalidArgument},
		"two words for a name":  {func(r *reportv1.BootReport) { r.Machine.Hostname = "a b" }, codes.InvalidArgument},
		"a line end in an id":   {func(r *reportv1.BootReport) { r.Machine.SystemUuid = "a\nb" }, codes.InvalidArgument},
		"no UTF-8 in an id":     {func(r *reportv1.BootReport) { r.BootId = "\xff" }, codes.InvalidArgument},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := proto.CloneOf(good)
			tc.change(r)
			if got := status.Code(checkBoot(r)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestCleanBoot(t *testing.T) {
	r := bootOf("m", 1, "a\nstep\x1b[31m")
	r.Message, r.Tail = strings.Repeat("é", 5000), strings.Repeat("line\x00\r\n", 5000)+"\tend"
	r.Machine.Addresses = append([]string{"10.0.0.1", "::ffff:10.0.0.2", "fe80::1%eth0", "no address"}, make([]string, 100)...)
	for range 100 {
		r.Phases = append(r.Phases, &reportv1.BootPhase{Name: "p", Started: &timestamppb.Timestamp{Seconds: 1 << 60}})
	}
	got := cleanBoot(r)
	if got.GetStep() != "a step [31m" || len(got.GetMessage()) > maxText || len(got.GetTail()) > MaxBootTail || !strings.HasSuffix(got.GetTail(), "line \n\tend") || !strings.HasPrefix(got.GetTail(), "line") {
		t.Errorf("step %q, message of %d bytes, tail of %d: %q", got.GetStep(), len(got.GetMessage()), len(got.GetTail()), got.GetTail()[:20])
	}
	if a := strings.Join(got.GetMachine().GetAddresses(), " "); a != "10.0.0.1 10.0.0.2" {
		t.Errorf("addresses %s", a)
	}
	if len(got.GetPhases()) != maxBootPhases || got.GetPhases()[0].GetStarted() != nil {
		t.Errorf("%d phases, %v", len(got.GetPhases()), got.GetPhases()[0])
	}
}

// FuzzBoot shows a hub anything that may come: what is kept of it is small, can be sent on, and is the same when it is cleaned again.
func FuzzBoot(f *testing.F) {
	data, err := proto.Marshal(bootOf("m", 1, "s"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, "tail\r\n\x00\xff")
	f.Add([]byte{}, strings.Repeat("é", 9000))
	f.Fuzz(func(t *testing.T, data []byte, tail string) {
		r := &reportv1.BootReport{}
		if proto.Unmarshal(data, r) != nil {
			return
		}
		r.Tail = strings.ToValidUTF8(tail, "")
		if checkBoot(r) != nil {
			return
		}
		clean := cleanBoot(r)
		if size := proto.Size(clean); size > MaxBootReport {
			t.Errorf("%d bytes are kept", size)
		}
		if _, err := proto.Marshal(clean); err != nil {
			t.Error(err)
		}
		if again := cleanBoot(clean); !proto.Equal(again, clean) {
			t.Errorf("cleaned again %v is %v", clean, again)
		}
	})
}
