package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/fairlead/fairlead/internal/spawn"
	"github.com/fairlead/fairlead/pkg/certs"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/synthetic"
)

// ServeCommand is the argument with which this program is started in order to run Serve.
const ServeCommand = "edges"

// Processes run edges in child processes. The caller must close them. They end with this process too.
type Processes []*process

// process is a child process that runs Serve.
type process struct {
	cmd    *exec.Cmd
	client *rpc.Client
}

// Part is what a child process must know in order to run some of the edges.
type Part struct {
	CA, Key                              []byte // of the installation, in PEM
	Management, Workload                 string // names of the namespaces
	Tunnels, Gateways, GatewaysPerTunnel int
	IDs                                  []string
	First                                int // the number of the first id in the installation
}

// Divide runs an edge for each id in as few child processes as possible, with at most the given number in each. The
// edges dial. The processes are killed when ctx ends.
func (w *World) Divide(ctx context.Context, ids []string, most int) (_ Processes, err error) {
	key, err := w.ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	part := Part{
		CA: w.ca.CertPEM(), Key: key, Management: w.Network.Management.Name, Workload: w.Network.Workload.Name,
		Tunnels: w.options.Tunnels, Gateways: w.options.Gateways, GatewaysPerTunnel: w.options.GatewaysPerTunnel,
	}
	var all Processes
	defer func() {
		if err != nil {
			all.Close()
		}
	}()
	for part.IDs = range slices.Chunk(ids, most) {
		p, err := startProcess(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
		if err := p.call(ctx, "Start", part, &struct{}{}); err != nil {
			return nil, err
		}
		part.First += len(part.IDs)
	}
	return all, nil
}

// startProcess starts this program as a child process that runs Serve.
func startProcess(ctx context.Context) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, ServeCommand)
	cmd.Stderr = os.Stderr
	// Ctrl-C reaches only this process, which closes the others. If this process is killed, the kernel kills them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := spawn.Start(cmd); err != nil {
		return nil, fmt.Errorf("starting a process for edges: %w", err)
	}
	return &process{cmd, jsonrpc.NewClient(streams{out, in})}, nil
}

// call calls a method of service, and returns its error or that of ctx.
func (p *process) call(ctx context.Context, method string, args, reply any) (err error) {
	select {
	case done := <-p.client.Go(serviceName+"."+method, args, reply, make(chan *rpc.Call, 1)).Done:
		err = done.Error
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("calling %s of the process %d for edges: %w", method, p.cmd.Process.Pid, err)
	}
	return nil
}

// Up returns how many tunnels are open at each gateway.
func (all Processes) Up(ctx context.Context) (each []int64, err error) {
	for _, p := range all {
		var up []int64
		if err := p.call(ctx, "Up", struct{}{}, &up); err != nil {
			return nil, err
		}
		each = append(each, make([]int64, len(up)-len(each))...)
		for i, n := range up {
			each[i] += n
		}
	}
	return each, nil
}

// Follow opens the control channels of all edges, and returns how many are open.
func (all Processes) Follow(ctx context.Context) (sum int, failed error) {
	for _, p := range all {
		var open int
		failed = errors.Join(failed, p.call(ctx, "Follow", struct{}{}, &open))
		sum += open
	}
	return sum, failed
}

// Close kills the processes, and returns when they have ended.
func (all Processes) Close() {
	for _, p := range all {
		_ = p.cmd.Process.Kill()
		_ = p.client.Close()
		_ = p.cmd.Wait()
	}
}

// streams are the two ends of a child process's input and output, or the child's own.
type streams struct {
	io.ReadCloser
	io.WriteCloser
}

// Close closes both.
func (s streams) Close() error { return errors.Join(s.ReadCloser.Close(), s.WriteCloser.Close()) }

// Serve runs edges for the process at the other end of the streams, which calls it by JSON-RPC, until that closes them.
func Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := rpc.NewServer()
	if err := server.RegisterName(serviceName, &service{ctx: ctx}); err != nil {
		return err
	}
	server.ServeCodec(jsonrpc.NewServerCodec(streams{in, out}))
	return nil
}

// serviceName is the name of service in calls.
const serviceName = "Edges"

// service is what a child process does for its parent, which makes one call at a time.
type service struct {
	ctx        context.Context // ends with the process
	simulation *Simulation
	first      int               // the number of the first edge in the installation
	edges      []*synthetic.Edge // of each tunnel, at the first of its gateways
}

// Start adds the edges of a part, which dial. It must be the first call.
func (s *service) Start(p Part, _ *struct{}) error {
	ca, err := certs.ParseCA(p.CA, p.Key)
	if err != nil {
		return err
	}
	management, workload := &netns.Namespace{Name: p.Management}, &netns.Namespace{Name: p.Workload}
	s.simulation, err = newSimulation(ca, management, workload, Options{
		Tunnels: p.Tunnels, Gateways: p.Gateways, GatewaysPerTunnel: p.GatewaysPerTunnel,
	})
	if err != nil {
		return err
	}
	s.first = p.First
	for _, id := range p.IDs {
		edges, err := s.simulation.Edges(id)
		if err != nil {
			return err
		}
		s.edges = append(s.edges, edges[0])
		for _, e := range edges {
			e.Start()
		}
	}
	return nil
}

// Up answers how many tunnels are open at each gateway.
func (s *service) Up(_ struct{}, each *[]int64) error {
	for _, f := range s.simulation.Fleets {
		*each = append(*each, f.Stats().Up)
	}
	return nil
}

// Follow opens the control channels of all edges, which stay open. It answers how many these are.
func (s *service) Follow(_ struct{}, open *int) error {
	all, err := s.simulation.FollowAll(s.ctx, s.edges, s.first)
	*open = len(all)
	return err
}
