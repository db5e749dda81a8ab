package networks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/test/bench/konnectivity"
	"github.com/fairlead/fairlead/test/bench/record"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/pods"
)

// patience bounds what should happen at once.
const patience = 30 * time.Second

// contender is one kind of way to the remote network. start starts its programs, and returns the content of the
// apiserver's egress selector; nil: the apiserver dials directly.
type contender struct {
	name  string
	start func(ctx context.Context, w *world, s *subject) (selector []byte, err error)
}

// contenders returns everything that is compared: first the direct connection, then Fairlead, then the selected peers.
func contenders(options record.Options) []contender {
	all := []contender{{"direct", direct}, {"fairlead", fairlead}}
	for _, c := range []contender{
		{grpcMode, konnectivityMode(konnectivity.GRPC, 8100)},
		{connectMode, konnectivityMode(konnectivity.HTTPConnect, 8200)},
	} {
		if options.Against.MatchString(c.name) {
			all = append(all, c)
		}
	}
	return all
}

// subject is a running contender.
type subject struct {
	name   string
	api    *kube.APIServer
	client *pods.Client
	shared []*proc.Process // between apiserver and edges
	edges  []*proc.Process // in the remote network
	atRest float64         // resident memory of all of them without streams, in bytes

	// edge starts one more edge, and returns when it can serve.
	edge   func(ctx context.Context) (*proc.Process, error)
	number int // of edges started so far
}

// direct lets the apiserver dial.
func direct(context.Context, *world, *subject) ([]byte, error) { return nil, nil }

// beginAll starts contenders together. A peer that cannot be started is reported and skipped; the direct connection
// and Fairlead must start.
func (w *world) beginAll(ctx context.Context, options record.Options) ([]*subject, error) {
	selected := contenders(options)
	begun, errs := make([]*subject, len(selected)), make([]error, len(selected))
	var group errgroup.Group
	for i, c := range selected {
		group.Go(func() error {
			begun[i], errs[i] = w.begin(ctx, c, i)
			return nil
		})
	}
	_ = group.Wait()
	var subjects []*subject
	for i, s := range begun {
		switch {
		case errs[i] == nil:
			subjects = append(subjects, s)
		case i < 2 || ctx.Err() != nil:
			return nil, errors.Join(errs...)
		default:
			options.Printf("left out: %v", errs[i])
		}
	}
	return subjects, nil
}

// begin starts a subject and returns when its apiserver reaches the kubelet.
func (w *world) begin(ctx context.Context, c contender, number int) (*subject, error) {
	s := &subject{name: c.name}
	selector, err := c.start(ctx, w, s)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	var flags []string
	if selector != nil {
		file := w.File("egress-" + s.file() + ".yaml")
		if err := os.WriteFile(file, selector, 0o600); err != nil {
			return nil, err
		}
		flags = append(flags, "--egress-selector-config-file="+file)
	}
	if s.api, err = w.startAPIServer(ctx, s.file(), number, flags); err != nil {
		return nil, err
	}
	if s.client, err = pods.NewClient(s.api.Config, pod, kube.Container); err != nil {
		return nil, err
	}
	if err := s.recovers(ctx); err != nil {
		return nil, err
	}
	s.atRest = s.memory()
	return s, nil
}

// file returns the name of the subject in names of files.
func (s *subject) file() string { return strings.ReplaceAll(s.name, " ", "-") }

// recovers waits until the apiserver reaches the kubelet.
func (s *subject) recovers(ctx context.Context) error {
	return proc.Wait(ctx, patience, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if err := s.client.Run(ctx, "true"); err != nil {
			return fmt.Errorf("%s does not lead to the kubelet: %w", s.name, err)
		}
		return nil
	})
}

// addEdge starts one more edge.
func (s *subject) addEdge(ctx context.Context) error {
	s.number++
	edge, err := s.edge(ctx)
	if err != nil {
		return fmt.Errorf("starting edge %d of %s: %w", s.number, s.name, err)
	}
	s.edges = append(s.edges, edge)
	return nil
}

func (s *subject) processes() []*proc.Process {
	return append(s.shared[:len(s.shared):len(s.shared)], s.edges...)
}

// memory returns the resident memory of the programs between apiserver and kubelet, in bytes.
func (s *subject) memory() float64 {
	sum := 0.0
	for _, p := range s.processes() {
		if rss, err := proc.RSS(p.PID()); err == nil {
			sum += float64(rss)
		}
	}
	return sum
}

// cpu returns the CPU seconds that the programs between apiserver and kubelet have used so far.
func (s *subject) cpu() float64 {
	sum := 0.0
	for _, p := range s.processes() {
		if used, err := proc.CPU(p.PID()); err == nil {
			sum += used.Seconds()
		}
	}
	return sum
}

// closeAll closes everything and ignores errors.
func closeAll[C io.Closer](all []C) {
	for _, c := range all {
		_ = c.Close()
	}
}
