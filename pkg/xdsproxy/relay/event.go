package relay

import (
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
)

// Event is an input of a Relay.
type Event interface{ apply(r *Relay) }

// The events. A stream of an xds-server and a stream of Envoy have numbers that the caller chooses, never twice. Events
// of streams that are not open are ignored.
type (
	// Restored is what earlier agents left on disk.
	Restored struct {
		Files    []Stored
		Trials   int  // count in the record of trials
		Unusable bool // there is a record, and it is not usable
	}
	// Vetted makes an upstream known, and reports which of its present resources must not be used.
	Vetted struct {
		Upstream string
		Faults   []Fault
	}
	// Removed removes an upstream and its resources, from Envoy and from disk.
	Removed struct{ Upstream string }

	// Opened begins a stream to an xds-server.
	Opened struct {
		Upstream string
		Stream   uint64
	}
	// Received is a response of an xds-server.
	Received struct {
		Upstream string
		Stream   uint64
		Kind     Kind
		Nonce    string
		Changes  Set
	}
	// Closed ends a stream to an xds-server.
	Closed struct {
		Upstream string
		Stream   uint64
		Code     codes.Code
	}

	// Attached begins a stream of Envoy. There is one Envoy, so it ends any other one.
	Attached struct{ Session uint64 }
	// Requested is a request of Envoy: its first one of a type is a subscription, the others are ACKs and NACKs.
	Requested struct {
		Session uint64
		Kind    Kind
		Have    map[string]string // of a subscription: versions by name
		Stale   []string          // names of Have in a form that is no longer the right one
		Nonce   string
		Nack    *Rejection // Code and Message; nil: ACK
	}
	// Detached ends a stream of Envoy.
	Detached struct{ Session uint64 }
	// Reformed reports that the form of resources may have changed: Envoy gets them again.
	Reformed struct {
		Kind  Kind
		Names []string
	}

	// Crashed reports that Envoy ended unexpectedly.
	Crashed struct{}
	// Ran reports that Envoy has run for a while.
	Ran struct{}
	// Ended reports that Envoy ran until it was stopped in order.
	Ended struct{}

	// Written is the result of a Write.
	Written struct {
		Write
		Sizes []int64 // bytes written of each of its files; -1: it failed, and the file is not known
		Err   string  // of the last that failed
	}
	// Recorded is the result of a Record; empty: it succeeded.
	Recorded struct {
		Count int
		Err   string
	}
	// Ticked reports that the time of Wake has come.
	Ticked struct{}
	// Flushed has everything written now, because the agent ends.
	Flushed struct{}
)

// Generation selects one of the two files of each type of an upstream.
type Generation int

// The generations.
const (
	Accepted    Generation = iota // what Envoy accepted last
	Good                          // what Envoy has run with
	Generations                   // number of generations
)

// Stored is the content of a file.
type Stored struct {
	Upstream   string
	Kind       Kind
	Generation Generation
	Set        Set
	Rejected   *Rejection // nil: nothing
	Torn       bool       // a last change is incomplete and ignored
}

// Fault is a resource that must not be used.
type Fault struct {
	Kind          Kind
	Name, Version string
	Why           string
}

// Effect is an output of a Relay.
type Effect any

// The effects.
type (
	// Subscribe requests all resources of a type from an xds-server.
	Subscribe struct {
		Upstream string
		Stream   uint64
		Kind     Kind
		First    bool              // it is the first request of the stream
		Versions map[string]string // that Envoy has accepted, so that only differences are sent
	}
	// Answer is an ACK for an xds-server, or a NACK.
	Answer struct {
		Upstream   string
		Stream     uint64
		Kind       Kind
		Nonce      string
		Rejections []*Rejection // empty: ACK
	}
	// CloseStream ends the stream to an xds-server.
	CloseStream struct {
		Upstream string
		Stream   uint64
		Err      error
	}

	// Respond sends a response to Envoy. It has changes of one upstream only.
	Respond struct {
		Session   uint64
		Kind      Kind
		Nonce     string
		Resources []*Resource
		Removed   []string
	}
	// CloseSession ends the stream of Envoy.
	CloseSession struct {
		Session uint64
		Err     error
	}

	// Write writes files of one upstream. Its result is Written.
	Write struct {
		Upstream string
		ID       uint64
		Files    []File
	}
	// Erase removes the files of an upstream.
	Erase struct{ Upstream string }
	// Record writes the number of trials. Its result is Recorded, and the effects that need it come after that.
	Record struct{ Count int }

	// Log is a line of the log.
	Log struct {
		Level   slog.Level
		Message string
		Attrs   []any
	}
	// Notify reports that the State of an upstream may have changed.
	Notify struct{}
	// RolledBack reports that Crashed has restored the last good resources.
	RolledBack struct{}
)

// File is a content to be written.
type File struct {
	Kind       Kind
	Generation Generation
	Whole      bool // Set is the whole content; otherwise it has the changes since the last write
	Set        Set
	Rejected   *Rejection // after crashes; nil: nothing
}

// Why streams are ended.
var (
	ErrRemoved  = errors.New("the resources of the upstream were removed")
	ErrTooMany  = errors.New("the xds-server does not wait for answers")
	ErrNotAsked = errors.New("the xds-server sends resources that were not requested")
	ErrReplaced = errors.New("another Envoy has connected")
	ErrGone     = errors.New("the stream of Envoy has ended")
)
