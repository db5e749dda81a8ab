package robustness

import (
	"bufio"
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Action is what a step does.
type Action string

const (
	// Kill ends a process with SIGKILL and keeps it stopped until the step ends. Its agent starts an Envoy again at once.
	Kill Action = "kill"
	// Freeze stops a process with SIGSTOP, and continues it when the step ends.
	Freeze Action = "freeze"
	// Starve lets a process run for only a tenth of the time.
	Starve Action = "starve"
	// NoFiles lets a process open no further files or connections.
	NoFiles Action = "no-files"
	// Ahead starts a program again with a clock that is 10 minutes ahead, and Behind with one that is late. When the step
	// ends, it starts with the right clock.
	Ahead Action = "ahead"
	// Behind is the opposite of Ahead.
	Behind Action = "behind"
	// FillDisk leaves no space on the disk of an edge or a gateway.
	FillDisk Action = "fill-disk"
	// ReadOnly makes the disk of an edge or a gateway read-only.
	ReadOnly Action = "read-only"
	// SlowDisk makes each write to the disk of an edge or a gateway take seconds.
	SlowDisk Action = "slow-disk"
	// Unplug sets the link of an edge's site down: packets in both directions are lost without an error.
	Unplug Action = "unplug"
	// OneWay loses the packets from an edge's site to the gateways, and only those.
	OneWay Action = "one-way"
	// Delay makes each packet of an edge's site take 150 ms longer.
	Delay Action = "delay"
	// Lossy loses, repeats and reorders some packets of an edge's site.
	Lossy Action = "lossy"
	// Corrupt changes bytes in packets of an edge's site so that TCP does not notice.
	Corrupt Action = "corrupt"
	// Forget loses all packets of the TCP connections of an edge's site that exist already, as a load balancer does that
	// has lost its table. New connections work.
	Forget Action = "forget"
	// NoMemory lets a process allocate no further memory.
	NoMemory Action = "no-memory"
	// WrongDNS makes the name of the gateways resolve to another machine at the site of an edge.
	WrongDNS Action = "wrong-dns"
	// Misroute makes all new connections from the site of an edge to the gateways arrive at the same one, as a load
	// balancer does that knows only one of them.
	Misroute Action = "misroute"
	// Refuse makes the apiserver of the management cluster answer 429 to everything of ours.
	Refuse Action = "refuse"
	// NoQuorum stops all members of the management cluster's etcd but one, which reports that it has no leader.
	NoQuorum Action = "no-quorum"
	// Fail makes the apiserver of the management cluster answer our writes with 409, with 500, or not at all.
	Fail Action = "fail"

	// Delete deletes a Cluster, and creates it again under the same name when the step ends.
	Delete Action = "delete"
	// Create creates a Cluster that did not exist, and deletes it when the step ends.
	Create Action = "create"
	// Pause pauses a Cluster until the step ends.
	Pause Action = "pause"
	// OptOut changes the label of a Cluster to what means no tunnel, and back when the step ends.
	OptOut Action = "opt-out"
	// Connect changes the mode of a Cluster's kubeconfig to connect, and back when the step ends.
	Connect Action = "connect"
	// Revoke revokes an edge, and starts another one in a new place.
	Revoke Action = "revoke"
	// RotateCA begins a rotation of the CA of the edges.
	RotateCA Action = "rotate-ca"
	// ScaleDown removes the last gateway, and adds it again when the step ends.
	ScaleDown Action = "scale-down"
	// Move takes a Cluster away as clusterctl move does, and brings it back when the step ends. Its edges stay.
	Move Action = "move"
	// Transfer moves a Cluster to a second management cluster by the documented procedure, and back when the step ends.
	Transfer Action = "transfer"
	// Names adds a further name to a Tunnel, and removes it when the step ends.
	Names Action = "names"
	// Limits limits a Tunnel, and removes the limits when the step ends.
	Limits Action = "limits"
	// Downgrade replaces a program by its build of the earliest supported version, and back when the step ends.
	Downgrade Action = "downgrade"
)

// targets are the targets of each action, as in Inventory.
var targets = map[Action][]string{
	Kill: processes(), Freeze: append(processes(), "apiserver", "etcd"), Starve: processes(), NoFiles: processes(),
	Ahead: programs(), Behind: programs(), FillDisk: disks(), ReadOnly: disks(), SlowDisk: disks(),
	NoMemory: processes(), WrongDNS: edges(), Misroute: edges(),
	Unplug: append(edges(), networks()...), OneWay: edges(), Delay: edges(), Lossy: edges(), Corrupt: edges(),
	Forget: edges(),
	Refuse: {"apiserver"}, Fail: {"apiserver"}, NoQuorum: {"etcd"},
	Delete: {"oslo"}, Create: {"lima"}, Pause: clusters(), OptOut: {"tokyo"}, Connect: clusters(),
	Revoke: {"paris/0", "paris/1"}, RotateCA: {"installation"}, ScaleDown: {"gateway/2"},
	Move: {"oslo", "paris"}, Transfer: {"berlin", "paris"}, Names: {"paris", "tokyo"}, Limits: clusters(),
	Downgrade: versioned(),
}

// operations are what users do. All other actions are faults.
var operations = []Action{
	Delete, Create, Pause, OptOut, Connect, Revoke, RotateCA, ScaleDown, Move, Transfer, Names, Limits, Downgrade,
}

// Inventory is the installation that random schedules are for: workload clusters with the number of their edges.
var Inventory = map[string]int{"berlin": 1, "rome": 1, "paris": 2, "tokyo": 2, "oslo": 1}

// Networks are Clusters with a RemoteNetwork. Their networks have the same addresses, and one edge each.
var Networks = []string{"bern", "vienna"}

// Second ends the name of a workload cluster in the installation of the second management cluster, and its paths there.
const Second = "@second"

// EgressPath is the path of requests from an apiserver to its network.
const EgressPath = "egress"

// The numbers of the other processes.
const (
	Controllers = 2
	XDSServers  = 2
	Gateways    = 3
	EtcdMembers = 3 // in the long form
)

// IsFault reports whether an action is a fault, and not something that users do.
func (a Action) IsFault() bool { return !slices.Contains(operations, a) }

// Step is one step of a schedule.
type Step struct {
	At     time.Duration // since the first step could have begun
	For    time.Duration // until its end; 0: it has none of its own
	Action Action
	Target string
}

// String returns the step as a line of a schedule.
func (s Step) String() string { return fmt.Sprintf("%s %s %s %s", s.At, s.For, s.Action, s.Target) }

// End returns when the step ends.
func (s Step) End() time.Duration { return s.At + s.For }

// Breaks returns the workload cluster or the gateway whose requests may fail because of the step. It is empty if none
// may: requests need neither controllers nor xds-servers nor the management cluster nor a disk, and an Envoy continues
// without its agent.
func (s Step) Breaks() string {
	switch s.Action { // open tunnels need no disk, no lookup and no mode
	case FillDisk, ReadOnly, SlowDisk, WrongDNS, Misroute, Pause, Connect:
		return ""
	}
	if s.ofAgent() {
		return ""
	}
	fields := strings.Split(s.Target, "/")
	switch fields[0] {
	case "controller", "xds-server", "apiserver", "etcd", "installation", "cli":
		return ""
	case "gateway":
		return "gateway-" + fields[1]
	}
	return fields[0]
}

// BreaksNetworks reports whether requests from apiservers to their networks may fail because of the step: the earliest
// version knows no networks, and the agent of a gateway permits each new connection of them.
func (s Step) BreaksNetworks() bool {
	kind, _, _ := strings.Cut(s.Target, "/")
	return s.Action == Downgrade && slices.Contains([]string{"controller", "xds-server", "gateway"}, kind) ||
		s.ofAgent() && kind == "gateway"
}

// BreaksAll reports whether requests to each workload cluster may fail because of the step: an edge that connects to
// an xds-server of another version may get other reverse tunnels, and what is in the former ones ends
// (docs/operations.md).
func (s Step) BreaksAll() bool {
	return s.Action == Downgrade && strings.HasPrefix(s.Target, "xds-server/")
}

// ofAgent reports whether the step is a fault of an agent.
func (s Step) ofAgent() bool { return s.Action.IsFault() && strings.HasSuffix(s.Target, "/agent") }

// Brief reports whether what a fault breaks can work again before the fault ends: an Envoy that was killed is started
// again, and connections begin that a load balancer has not forgotten.
func (s Step) Brief() bool {
	return s.Action == Forget || s.Action == Kill && strings.HasSuffix(s.Target, "/envoy")
}

// Relays reports whether the step is about a gateway, which may relay tunnels to other gateways.
func (s Step) Relays() bool { return strings.HasPrefix(s.Target, "gateway/") }

// Doubts reports whether the step may leave a gateway with connections that have no record.
func (s Step) Doubts() bool {
	return s.Relays() && slices.Contains([]Action{FillDisk, ReadOnly, SlowDisk}, s.Action)
}

// Denies reports whether an edge or a tunnel is denied because of the step.
func (s Step) Denies() bool {
	return slices.Contains([]Action{Revoke, Delete, Create, OptOut, Transfer}, s.Action)
}

// Blinds reports whether the step may keep the status of Tunnels from being current: what reports it is broken.
func (s Step) Blinds() bool {
	if !s.Action.IsFault() {
		return false
	}
	kind, _, _ := strings.Cut(s.Target, "/")
	return slices.Contains([]string{"controller", "xds-server", "apiserver", "etcd", "gateway"}, kind)
}

// Format returns a schedule as text, one step per line.
func Format(steps []Step) string {
	var text strings.Builder
	for _, s := range steps {
		text.WriteString(s.String() + "\n")
	}
	return text.String()
}

// Parse reads what Format returns. Lines that begin with # are comments.
func Parse(text string) ([]Step, error) {
	var steps []Step
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 4 {
			return nil, fmt.Errorf("reading step %q: want time, duration, action and target", lines.Text())
		}
		at, err := time.ParseDuration(fields[0])
		if err != nil {
			return nil, fmt.Errorf("reading step %q: %w", lines.Text(), err)
		}
		length, err := time.ParseDuration(fields[1])
		if err != nil {
			return nil, fmt.Errorf("reading step %q: %w", lines.Text(), err)
		}
		s := Step{At: at, For: length, Action: Action(fields[2]), Target: fields[3]}
		if !slices.Contains(targets[s.Action], s.Target) {
			return nil, fmt.Errorf("reading step %q: no action with this target", lines.Text())
		}
		steps = append(steps, s)
	}
	return steps, nil
}

const (
	// pause is the longest time without a new step, long the longest duration of a step, and away that of a step without
	// a tunnel, of which the check must see that it has ended.
	pause, long, away = 8 * time.Second, 20 * time.Second, time.Minute
	// quiet is how long a target remains alone after a step, and how long a workload cluster has no other operation.
	quiet = 5 * time.Second
	// changing is how long an operation may take that has to wait until a new edge carries traffic.
	changing = 40 * time.Second
)

// Schedule returns the schedule of a seed: the same one for the same arguments, always. Steps overlap, but no two steps
// at a time have the same target, and no two operations the same workload cluster. All steps end within the duration.
func Schedule(seed uint64, duration time.Duration) []Step {
	random := rand.New(rand.NewPCG(seed, 0))
	actions := actionsInOrder()
	free := map[string]time.Duration{}
	var steps []Step
	for at := time.Duration(0); ; {
		at += time.Duration(random.Int64N(int64(pause))).Round(time.Millisecond)
		action := actions[random.IntN(len(actions))]
		if random.IntN(2) == 0 { // half of all steps are the faults that there are most targets of
			action = []Action{Kill, Freeze}[random.IntN(2)]
		}
		target := targets[action][random.IntN(len(targets[action]))]
		longest := long
		if action == Delete || action == OptOut {
			longest = away
		}
		length := (time.Second + time.Duration(random.Int64N(int64(longest-time.Second)))).Round(time.Millisecond)
		s := Step{At: at, For: length, Action: action, Target: target}
		if s.Action == Revoke || s.Action == RotateCA {
			s.For = 0
		}
		if at >= duration {
			break
		}
		lane := s.lane()
		busy := s.End() + quiet
		if !s.Action.IsFault() && s.Action != Downgrade {
			busy += changing
		}
		if s.End() > duration || free[lane] > at {
			continue
		}
		free[lane] = busy
		steps = append(steps, s)
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return cmp.Compare(a.At, b.At) })
	return steps
}

// lane returns what a step has for itself.
func (s Step) lane() string {
	if s.Target == "etcd" {
		return "fault apiserver"
	}
	if s.Doubts() {
		return "fault " + s.Target + "/agent" // a downgrade needs the disk
	}
	if s.Action.IsFault() || s.Action == Downgrade {
		return "fault " + s.Target
	}
	cluster, _, _ := strings.Cut(s.Target, "/")
	return "operation " + cluster
}

func actionsInOrder() []Action {
	var all []Action
	for a := range targets {
		all = append(all, a)
	}
	slices.Sort(all)
	return all
}

func clusters() []string {
	var all []string
	for name := range Inventory {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

func edges() []string {
	var all []string
	for _, name := range clusters() {
		for i := range Inventory[name] {
			all = append(all, fmt.Sprintf("%s/%d", name, i))
		}
	}
	return all
}

// networks returns the edges of networks, as targets.
func networks() []string {
	var all []string
	for _, name := range Networks {
		all = append(all, name+"/0")
	}
	return all
}

// versioned returns the programs that run in the earliest version, too. It has no edges of networks.
func versioned() []string {
	return append(slices.DeleteFunc(programs(), func(name string) bool {
		kind, _, _ := strings.Cut(name, "/")
		return slices.Contains(Networks, kind)
	}), "cli")
}

// programs returns the processes that are not Envoys.
func programs() []string {
	return slices.DeleteFunc(processes(), func(name string) bool { return strings.HasSuffix(name, "/envoy") })
}

// disks returns the edges and gateways with a disk of their own, without the last gateway, like processes.
func disks() []string {
	all := edges()
	for i := range Gateways - 1 {
		all = append(all, fmt.Sprintf("gateway/%d", i))
	}
	return all
}

// processes returns the processes that can be killed. The last gateway is left out: it is scaled down.
func processes() []string {
	var all []string
	for _, edge := range edges() {
		all = append(all, edge+"/agent", edge+"/envoy")
	}
	for _, name := range Networks {
		for _, part := range []string{"/0", "/egress"} {
			all = append(all, name+part+"/agent", name+part+"/envoy")
		}
	}
	for i := range Gateways - 1 {
		all = append(all, fmt.Sprintf("gateway/%d/agent", i), fmt.Sprintf("gateway/%d/envoy", i))
	}
	for i := range XDSServers {
		all = append(all, fmt.Sprintf("xds-server/%d", i))
	}
	for i := range Controllers {
		all = append(all, fmt.Sprintf("controller/%d", i))
	}
	return all
}
