package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "github.com/fairlead/fairlead/pkg/report/v1"
)

var idA, idB = strings.Repeat("a", 24), strings.Repeat("b", 24)

func bootOf(host string, sequence uint64, step string) *reportv1.BootReport {
	return &reportv1.BootReport{
		BootId: "b", Sequence: sequence, State: reportv1.BootState_BOOT_STATE_RUNNING, Step: step,
		Machine: &reportv1.Machine{Hostname: host},
	}
}

func TestBootsAreBounded(t *testing.T) {
	now := time.Now()
	b := NewBoots(BootBounds{Machines: 10, Bytes: 10_000, AllMachines: 25, AllBytes: 100_000, Keep: time.Hour})
	put := func(id, host string, tail int) {
		t.Helper()
		now = now.Add(time.Second)
		b.Put(id, NewBoot(host, &reportv1.BootReport{Tail: strings.Repeat("x", tail)}, now))
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
	if b.Get(idA, "first") == nil {
		t.Error("one tunnel has pushed out another, which takes less")
	}
	put(idB, "greedy-99", 9_000) // the same report again, which displaces all of its own
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
		"good": {func(*reportv1.BootReport) {}, codes.OK},
		"too large": {
			func(r *reportv1.BootReport) { r.Tail = strings.Repeat("x", MaxBootReport) },
			codes.InvalidArgument,
		},
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
			if got := status.Code(CheckBoot(r)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestCleanBoot(t *testing.T) {
	r := bootOf("m", 1, "a\nstep\x1b[31m")
	r.Message, r.Tail = strings.Repeat("é", 5000), strings.Repeat("line\x00\r\n", 5000)+"\tend"
	r.Machine.Addresses = append([]string{"10.0.0.1", "::ffff:10.0.0.2", "fe80::1%eth0", "no address"},
		make([]string, 100)...)
	for range 100 {
		r.Phases = append(r.Phases, &reportv1.BootPhase{Name: "p", Started: &timestamppb.Timestamp{Seconds: 1 << 60}})
	}
	got := CleanBoot(r)
	if got.GetStep() != "a step [31m" || len(got.GetMessage()) > MaxText || len(got.GetTail()) > MaxBootTail ||
		!strings.HasSuffix(got.GetTail(), "line \n\tend") || !strings.HasPrefix(got.GetTail(), "line") {
		t.Errorf("step %q, message of %d bytes, tail of %d: %q", got.GetStep(), len(got.GetMessage()), len(got.GetTail()),
			got.GetTail()[:20])
	}
	if a := strings.Join(got.GetMachine().GetAddresses(), " "); a != "10.0.0.1 10.0.0.2" {
		t.Errorf("addresses %s", a)
	}
	if len(got.GetPhases()) != maxBootPhases || got.GetPhases()[0].GetStarted() != nil {
		t.Errorf("%d phases, %v", len(got.GetPhases()), got.GetPhases()[0])
	}
}

// FuzzBoot feeds a hub with arbitrary data: what it stores is small, can be sent on, and does not change when it is
// cleaned again.
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
		if CheckBoot(r) != nil {
			return
		}
		clean := CleanBoot(r)
		if size := proto.Size(clean); size > MaxBootReport {
			t.Errorf("%d bytes are kept", size)
		}
		if _, err := proto.Marshal(clean); err != nil {
			t.Error(err)
		}
		if again := CleanBoot(clean); !proto.Equal(again, clean) {
			t.Errorf("cleaned again %v is %v", clean, again)
		}
	})
}
