// Package netpolicy enforces NetworkPolicies in the clusters of test/lab/cluster, as the network plugin of a cluster
// does. Input: a cluster's NetworkPolicies, Namespaces and Pods, and the addresses that its nodes have given to Pods.
// Output: nftables rules in the network of each node, and the flows that they have dropped. It does not know Fairlead
// or any test framework.
package netpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead/fairlead/test/lab/cluster"
)

const (
	period    = 50 * time.Millisecond // of looking for new Pods: a container needs longer to start
	applyTime = 10 * time.Second      // bounds setting the rules of one node
	syncTime  = 30 * time.Second      // bounds reading all objects
)

// Enforcer enforces the policies of one cluster until the cluster stops.
type Enforcer struct {
	cluster    *cluster.Cluster
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister

	changed chan struct{} // has an element after an object has changed

	mu      sync.Mutex
	records records
	nodes   map[string]ruleset // what each node enforces
	err     error              // of the last round
}

// Enforce enforces a cluster's NetworkPolicies, present and future, and returns when all nodes enforce the present
// ones. A new Pod has no network before the rules for it are set, which is before its first container starts. Pods in
// the network of their node, and the node itself, are not restricted.
func Enforce(ctx context.Context, c *cluster.Cluster) (*Enforcer, error) {
	clients, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return nil, fmt.Errorf("enforcing policies: %w", err)
	}
	factory := informers.NewSharedInformerFactory(clients, 0)
	e := &Enforcer{
		cluster: c, changed: make(chan struct{}, 1), records: records{}, nodes: map[string]ruleset{},
		pods:       factory.Core().V1().Pods().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
	}
	if err := e.watch(ctx, factory); err != nil {
		return nil, fmt.Errorf("enforcing policies: %w", err)
	}
	if err := e.round(ctx, true); err != nil {
		return nil, fmt.Errorf("enforcing policies: %w", err)
	}
	runCtx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { e.run(runCtx) })
	c.OnClose(func(context.Context) {
		cancel()
		running.Wait()
	})
	return e, nil
}

// watch starts the informers, which end with the cluster, and waits until they have read all objects.
func (e *Enforcer) watch(ctx context.Context, factory informers.SharedInformerFactory) error {
	notify := func(any) {
		select {
		case e.changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer(),
		factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, object any) { notify(object) }, DeleteFunc: notify,
		}); err != nil {
			return err
		}
	}
	watchCtx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(watchCtx)
	e.cluster.OnClose(func(context.Context) {
		cancel()
		factory.Shutdown()
	})
	ctx, stop := context.WithTimeout(ctx, syncTime)
	defer stop()
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("reading all objects of %s: %w", kind, context.Cause(ctx))
		}
	}
	return nil
}

// run sets the rules again after each change, and after a failure.
func (e *Enforcer) run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
			changed = true
		case <-tick.C:
		}
		_ = e.round(ctx, changed) // Dropped returns its error
	}
}

// round reads the addresses of Pods, and sets the rules of all nodes if anything has changed.
func (e *Enforcer) round(ctx context.Context, changed bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	nodes := e.cluster.Nodes()
	folders := map[string]string{}
	for _, node := range nodes {
		folders[node.Name] = node.PodNetworks()
	}
	moved, err := e.records.update(folders)
	if err == nil && !moved && !changed && e.err == nil {
		return nil
	}
	e.err = err
	var s *state
	if e.err == nil {
		s, e.err = e.state()
	}
	for _, node := range nodes {
		if e.err == nil {
			e.err = e.apply(ctx, node, s)
		}
	}
	return e.err
}

// state returns what the apiserver and the nodes have.
func (e *Enforcer) state() (*state, error) {
	pods, podsErr := e.pods.List(labels.Everything())
	namespaces, namespacesErr := e.namespaces.List(labels.Everything())
	policies, policiesErr := e.policies.List(labels.Everything())
	if err := errors.Join(podsErr, namespacesErr, policiesErr); err != nil {
		return nil, err
	}
	s := &state{policies: policies, namespaces: map[string]labels.Set{}}
	for _, namespace := range namespaces {
		s.namespaces[namespace.Name] = namespace.Labels
	}
	byUID := map[types.UID]pod{} // a Pod has two networks for a moment if its node replaces its sandbox
	for _, r := range e.records {
		byUID[r.pod] = pod{node: r.node, addresses: append(byUID[r.pod].addresses, r.addresses...)}
	}
	for _, p := range pods {
		if found, known := byUID[p.UID]; known {
			s.pods = append(s.pods, pod{Pod: p, node: found.node, addresses: found.addresses})
		}
	}
	slices.SortFunc(s.pods, func(a, b pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return s, nil
}

// apply makes a node enforce the rules for a state, unless it does.
func (e *Enforcer) apply(ctx context.Context, node *cluster.Node, s *state) error {
	rules, err := s.ruleset(node.Name)
	before, applied := e.nodes[node.Name]
	if err != nil || applied && rules.text == before.text {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	if _, err := e.nft(ctx, node, rules.script(before), "-f", "-"); err != nil {
		return fmt.Errorf("setting the rules of %s: %w", node.Name, err)
	}
	e.nodes[node.Name] = rules
	return nil
}

// nft runs nft in the network of a node, and returns its output.
func (e *Enforcer) nft(ctx context.Context, node *cluster.Node, input string, args ...string) ([]byte, error) {
	cmd := node.Namespace.Command(ctx, e.cluster.Parts.RealPath("nft"), args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	return out, err
}

// Dropped returns the flows that policies have denied since Enforce: on each node the first 1000 with IPv4 and with
// IPv6. Packets of Pods that are not known yet, or not anymore, are not among them. It returns an error if the last
// attempt to set the rules failed.
func (e *Enforcer) Dropped(ctx context.Context) ([]Flow, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil, fmt.Errorf("enforcing policies: %w", e.err)
	}
	ctx, cancel := context.WithTimeout(ctx, applyTime)
	defer cancel()
	var flows []Flow
	for _, node := range e.cluster.Nodes() {
		for _, set := range []string{"dropped4", "dropped6"} {
			out, err := e.nft(ctx, node, "", "--json", "--numeric", "list", "set", "inet", "netpolicy", set)
			if err != nil {
				return nil, fmt.Errorf("reading the dropped flows of %s: %w", node.Name, err)
			}
			found, err := parseFlows(out)
			if err != nil {
				return nil, fmt.Errorf("reading the dropped flows of %s: %w", node.Name, err)
			}
			flows = append(flows, found...)
		}
	}
	return flows, nil
}

// parseFlows reads a set in nft's JSON: its elements are [from, to, protocol, port].
func parseFlows(data []byte) (flows []Flow, err error) {
	var output struct {
		Objects []struct {
			Set struct {
				Elements []struct {
					Flow []any `json:"concat"`
				} `json:"elem"`
			} `json:"set"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(data, &output); err != nil {
		return nil, err
	}
	for _, object := range output.Objects {
		for _, element := range object.Set.Elements {
			flow, err := parseFlow(element.Flow)
			if err != nil {
				return nil, err
			}
			flows = append(flows, flow)
		}
	}
	return flows, nil
}

var protocols = map[string]string{"6": "TCP", "17": "UDP", "132": "SCTP"}

func parseFlow(fields []any) (flow Flow, err error) {
	if len(fields) != 4 {
		return Flow{}, fmt.Errorf("%v is no flow", fields)
	}
	if flow.From, err = netip.ParseAddr(fmt.Sprint(fields[0])); err != nil {
		return Flow{}, err
	}
	if flow.To, err = netip.ParseAddr(fmt.Sprint(fields[1])); err != nil {
		return Flow{}, err
	}
	flow.Protocol = protocols[fmt.Sprint(fields[2])]
	_, err = fmt.Sscan(fmt.Sprint(fields[3]), &flow.Port)
	return flow, err
}
