// Package robustness runs an installation under random faults and operations, and checks from a record of everything
// that happened that it did nothing that it must never do. Input: a schedule, which a seed decides. Output: a history,
// the violations that a pure check finds in it, and a line per run for the report. The files that are not tests know
// nothing about the installation: they are the schedule, the history, the check and the result.
package robustness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kind is what an entry of a history records.
type Kind string

const (
	// KindRun is the first entry: the seed, and how soon everything must work after the last step.
	KindRun Kind = "run"
	// KindAsk is the begin of a request.
	KindAsk Kind = "ask"
	// KindAnswer is the end of a request, whether or not it succeeded.
	KindAnswer Kind = "answer"
	// KindStep is the begin of a step of the schedule.
	KindStep Kind = "step"
	// KindDone is the end of a step.
	KindDone Kind = "done"
	// KindExpect says from when on a workload cluster should have a tunnel or not, and which name answers for it.
	KindExpect Kind = "expect"
	// KindRevoking says that an edge is about to be revoked.
	KindRevoking Kind = "revoking"
	// KindRevoked says that the revocation of an edge was confirmed.
	KindRevoked Kind = "revoked"
	// KindRetired says that an edge that still runs belongs to a Tunnel that has ended, or was revoked in an earlier run.
	KindRetired Kind = "retired"
	// KindFetched says that resources of a node were fetched from an xds-server with the identity of a revoked edge, or
	// with that of another edge, which Client names.
	KindFetched Kind = "fetched"
	// KindDenied says that an xds-server has denied an edge, Client, resources of another node, Name, for the first time.
	KindDenied Kind = "denied"
	// KindCarried says that a request of a client has arrived at a workload apiserver through an edge that was revoked
	// before, whether or not the client got an answer.
	KindCarried Kind = "carried"
	// KindHeld says that a fault, Text, holds up from now on what an edge has received.
	KindHeld Kind = "held"
	// KindReleased says that such a fault has ended.
	KindReleased Kind = "released"
	// KindReady says that the condition Ready of a workload cluster's Tunnel has changed or, with the client Final, what
	// it is in the end.
	KindReady Kind = "ready"
	// KindKubeconfig is a request with the kubeconfig that a workload cluster has in the end.
	KindKubeconfig Kind = "kubeconfig"
	// KindLeaves says that a Cluster is in another management cluster, too, and is about to be deleted where it was. Its
	// name is the one there.
	KindLeaves Kind = "leaves"
	// KindMoved says that clusterctl has ended: a Cluster is in another management cluster. Its name is the one there.
	KindMoved Kind = "moved"
	// KindArrived says that it answers there on every path, and nowhere else any longer.
	KindArrived Kind = "arrived"
	// KindPlaced says that a new edge will start at an address, where an earlier one may have been revoked.
	KindPlaced Kind = "placed"
	// KindLate says that a goroutine which does nothing else was scheduled late.
	KindLate Kind = "late"
	// KindUsage is what a process uses, before the first step or after the last one.
	KindUsage Kind = "usage"
	// KindSecret says that a log contains a secret.
	KindSecret Kind = "secret"
	// KindCrashed says that a log contains what a program writes when it crashes by itself.
	KindCrashed Kind = "crashed"
	// KindFinish is the last entry.
	KindFinish Kind = "finish"
)

// Entry is one line of a history. Which fields it has depends on its kind.
type Entry struct {
	At   time.Duration `json:"at"` // since the begin of the run
	Kind Kind          `json:"kind"`

	// ID connects the begin and the end of a request, of a step, and of what holds up an edge.
	ID int64 `json:"id,omitempty"`
	// Client is the kind of traffic; Final for the requests that decide whether everything works in the end.
	Client  string `json:"client,omitempty"`
	Cluster string `json:"cluster,omitempty"`
	Path    string `json:"path,omitempty"` // the gateway and the mode
	// Bound is how long a request may take; 0: it is a stream, which lasts until something breaks it.
	Bound time.Duration `json:"bound,omitempty"`
	// Answer is the name of the workload cluster that answered, and in an expectation the one that should.
	Answer string `json:"answer,omitempty"`
	Edge   string `json:"edge,omitempty"` // the address of the edge that carried the request, if known
	Error  string `json:"error,omitempty"`
	// Last is when a stream last received something, or when the last request of a connection began.
	Last time.Duration `json:"last,omitempty"`

	Up bool `json:"up,omitempty"` // expected: there should be a tunnel; ready: the Tunnel is ready
	// Settled says of an expectation that it was true before, so that it holds at once.
	Settled bool          `json:"settled,omitempty"`
	Text    string        `json:"text,omitempty"`  // of a step, or which secret a log contains
	Fault   bool          `json:"fault,omitempty"` // the step is a fault
	Late    time.Duration `json:"late,omitempty"`

	Process    string `json:"process,omitempty"` // the kind of process, such as edge-agent
	Name       string `json:"name,omitempty"`    // which one, or which log, or which node
	After      bool   `json:"after,omitempty"`   // measured after the last step
	Memory     uint64 `json:"memory,omitempty"`
	Files      uint64 `json:"files,omitempty"`
	Goroutines uint64 `json:"goroutines,omitempty"`
	Heap       uint64 `json:"heap,omitempty"`    // bytes that an Envoy uses of its heap
	Disk       uint64 `json:"disk,omitempty"`    // bytes in the state folder
	Objects    uint64 `json:"objects,omitempty"` // at the apiserver of the management cluster

	Seed   uint64        `json:"seed,omitempty"`
	Settle time.Duration `json:"settle,omitempty"`
}

const (
	// Final is the client whose requests are sent after the run has settled.
	Final = "final"
	// Idle is the client whose connections are idle between two requests. Its requests begin with the connection.
	Idle = "idle"
)

// Recorder appends entries to a history. It is safe for concurrent use.
type Recorder struct {
	mu      sync.Mutex
	out     io.Writer
	begin   time.Time
	entries []Entry
	next    int64
	err     error
}

// NewRecorder returns a recorder of a run that begins now. It also writes each entry to out at once, so that a run that
// is killed leaves its history.
func NewRecorder(out io.Writer) *Recorder {
	return &Recorder{out: out, begin: time.Now()}
}

// Add appends an entry with the present time.
func (r *Recorder) Add(e Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = time.Since(r.begin)
	r.append(e)
}

// Begin appends an entry with the present time and a new ID, and returns both.
func (r *Recorder) Begin(e Entry) (id int64, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	e.ID, e.At = r.next, time.Since(r.begin)
	r.append(e)
	return e.ID, e.At
}

// append appends an entry. The caller holds mu, so that times in the file only grow.
func (r *Recorder) append(e Entry) {
	r.entries = append(r.entries, e)
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.out.Write(append(line, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// Since returns a time as in the history.
func (r *Recorder) Since(t time.Time) time.Duration { return t.Sub(r.begin) }

// History returns all entries so far, and the first error of writing them.
func (r *Recorder) History() ([]Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Entry(nil), r.entries...), r.err
}

// ReadHistory reads what a recorder has written.
func ReadHistory(in io.Reader) ([]Entry, error) {
	var all []Entry
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("reading line %d of a history: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
	return all, lines.Err()
}
