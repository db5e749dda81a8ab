package networks

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/redact"
)

const (
	// maxNodes is how many Nodes of each network are dialled.
	maxNodes = 3
	// listedNodes and maxNodeList bound the list of Nodes: as a table each takes some hundred bytes.
	listedNodes, maxNodeList = 500, 2 << 20
	// nodeTime bounds a request to a Node: gateways and edges answer within 5 s.
	nodeTime = 6 * time.Second
	// edgeDialTime is how long an edge waits for an address that does not answer.
	edgeDialTime = 2 * time.Second
	kubeletPort  = 10250
	// listTime bounds the list of Nodes; maxAnswer bounds how much of another answer is read.
	listTime, maxAnswer = 5 * time.Second, 64 << 10
)

// node is a Node of the Cluster.
type node struct {
	name    string
	ready   bool
	address netip.Addr
}

// attempt is the result of a request by the apiserver to a Node.
type attempt struct {
	node
	problem string // of the apiserver's dial; empty: the kubelet was reached
	silent  bool   // the apiserver has not answered
	denied  bool   // the user may not dial Nodes
	took    time.Duration
}

// ErrDenied is wrapped by the errors of DialNodes that a permission would cure.
var ErrDenied = errors.New("the user of the kubeconfig may not do that")

// Outside is the place of Nodes that are in no network.
const Outside = -1

// Dialled are the results for the Nodes that an apiserver has dialled, by the index of their network.
type Dialled struct {
	networks []Network
	attempts map[int][]attempt
}

// DialNodes has an apiserver dial up to three Nodes of each network, by the way of `kubectl exec`. client uses
// HTTP/1.1, and server is the URL of the apiserver. The error means that its Nodes cannot be listed, or not be dialled.
func DialNodes(ctx context.Context, client *http.Client, server string, all []Network) (Dialled, error) {
	d := Dialled{networks: all, attempts: map[int][]attempt{}}
	nodes, err := listNodes(ctx, client, server)
	if err != nil {
		return d, err
	}
	groups := map[int][]node{}
	for _, n := range nodes {
		if at := Of(n.address, all); len(groups[at]) < maxNodes {
			groups[at] = append(groups[at], n)
		}
	}
	var waiting sync.WaitGroup
	for at, nodes := range groups {
		results := make([]attempt, len(nodes))
		d.attempts[at] = results
		for i, n := range nodes {
			waiting.Go(func() { results[i] = dialTwice(ctx, client, server, n) })
		}
	}
	waiting.Wait()
	for _, results := range d.attempts {
		if slices.ContainsFunc(results, func(a attempt) bool { return a.denied }) {
			return d, fmt.Errorf("getting nodes/proxy: %w", ErrDenied)
		}
	}
	return d, nil
}

// dialTwice repeats an attempt without an answer: a busy machine may delay a refusal, but an edge never gives up early.
func dialTwice(ctx context.Context, client *http.Client, server string, n node) attempt {
	first := dialNode(ctx, client, server, n)
	if first.problem == "" || first.silent || first.took < edgeDialTime {
		return first
	}
	if again := dialNode(ctx, client, server, n); again.took < first.took {
		return again
	}
	return first
}

// In returns the Nodes of a network that were reached, and the fault of the others. If a Node was reached, it is a
// warning.
func (d Dialled) In(network int) (reached string, fault *Fault) {
	var well, failed []string
	var first *attempt
	for i := range d.attempts[network] {
		if a := &d.attempts[network][i]; a.problem == "" {
			well = append(well, a.name)
		} else {
			failed = append(failed, a.name)
			if first == nil {
				first = a
			}
		}
	}
	reached = strings.Join(well, ", ")
	if first == nil {
		return reached, nil
	}
	fault = d.unreachable(network, first)
	fault.Detail = fmt.Sprintf("the apiserver does not reach Node %s: %s", strings.Join(failed, ", "), first.problem)
	if network != Outside {
		for _, s := range strays(d.networks, network) { // streams that use it fail
			other := s.fault(d.networks)
			fault.Detail, fault.Cause, fault.Cure = fault.Detail+"; "+other.Detail, other.Cause, other.Cure
			break
		}
	}
	if reached != "" {
		fault.Warning = true
		fault.Detail += "; it reaches " + reached
	}
	return reached, fault
}

// listNodes returns the Nodes of the Cluster, the ready ones first.
func listNodes(ctx context.Context, client *http.Client, server string) ([]node, error) {
	// Without includeObject=None each row has the metadata of its Node, which are several kilobytes.
	at := fmt.Sprintf("%s/api/v1/nodes?limit=%d&includeObject=%s", server, listedNodes, metav1.IncludeNone)
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	request.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("listing Nodes: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxNodeList))
	var table metav1.Table
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(data, &table)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("listing Nodes: %w", err)
	case response.StatusCode == http.StatusForbidden:
		return nil, fmt.Errorf("listing Nodes: %w", ErrDenied)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("listing Nodes: the answer is %d", response.StatusCode)
	}
	return nodesOf(&table), nil
}

// nodesOf reads the table of Nodes that `kubectl get nodes -o wide` prints.
func nodesOf(table *metav1.Table) (all []node) {
	column := func(name string) int {
		return slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == name })
	}
	name, status, address := column("Name"), column("Status"), column("Internal-IP")
	for i := range table.Rows {
		cell := func(at int) string {
			if at < 0 || at >= len(table.Rows[i].Cells) {
				return ""
			}
			s, _ := table.Rows[i].Cells[at].(string)
			return s
		}
		one := node{name: cell(name), ready: strings.HasPrefix(cell(status), "Ready")}
		if addr, err := netip.ParseAddr(cell(address)); err == nil && one.name != "" {
			one.address = addr.Unmap()
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b node) int {
		switch {
		case a.ready == b.ready:
			return 0
		case a.ready:
			return -1
		}
		return 1
	})
	return all
}

// dialNode has the apiserver dial a kubelet. The request asks for an upgrade, because only then an apiserver opens a
// new connection: other requests share one, which may outlive a fault.
func dialNode(ctx context.Context, client *http.Client, server string, n node) attempt {
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	result := attempt{node: n}
	at := server + "/api/v1/nodes/" + url.PathEscape(n.name) + "/proxy/healthz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		result.problem = err.Error()
		return result
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "SPDY/3.1")
	began := time.Now()
	response, err := client.Do(request)
	result.took = time.Since(began)
	if err != nil {
		result.problem, result.silent = "the apiserver does not answer: "+redact.Text(err.Error()), true
		return result
	}
	defer response.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	var status metav1.Status
	if json.Unmarshal(data, &status) != nil || status.Kind != "Status" {
		return result // of the kubelet
	}
	message := strings.Join(strings.Fields(redact.Text(status.Message)), " ")
	switch {
	case status.Reason == metav1.StatusReasonForbidden:
		result.denied = true
	case status.Reason == metav1.StatusReasonNotFound: // the Node was removed since it was listed
	case strings.Contains(message, "error dialing backend") && !strings.Contains(message, "x509:"),
		strings.HasPrefix(message, "lookup "):
		result.problem = message
	}
	return result // anything else is about what the kubelet has answered
}

// unreachable returns the fault of a Node that the apiserver does not reach, from the apiserver's own message.
func (d Dialled) unreachable(network int, a *attempt) *Fault {
	dialled, port, code := dialledBy(a.problem)
	_, notAddress := netip.ParseAddr(dialled)
	switch {
	case a.silent:
		return broken(
			"", "the apiserver waits for the Node: it dials Nodes without an EgressSelectorConfiguration, or the Envoy "+
				"beside it hangs",
			"apply what fairlead network egress prints for this control plane, and read the log of the sidecar",
		)
	case code == 0 && strings.Contains(a.problem, " unix "):
		return broken(
			"", "the Envoy beside the apiserver does not accept connections at its socket: it does not run, or the two "+
				"containers do not share the folder of the socket",
			"compare the socket in the EgressSelectorConfiguration with --egress-socket of the sidecar, and read its log",
		)
	case code == 0 && strings.Contains(a.problem, "dial tcp"):
		return broken(
			"", "the apiserver dials Nodes itself: it runs without an EgressSelectorConfiguration for the type cluster",
			"apply what fairlead network egress prints for this control plane, and restart the apiserver",
		)
	case strings.HasPrefix(a.problem, "lookup ") && ofName(lookedUp(a.problem), d.networks) != Outside:
		return warning(
			"", "the apiserver resolves the name of the Node itself for nodes/proxy, by which check dials, and its DNS lacks "+
				"it; exec and logs leave that to the edge",
			"test exec instead, or start the apiserver with --kubelet-preferred-address-types=InternalIP,ExternalIP",
		)
	case notAddress != nil && ofName(dialled, d.networks) != Outside:
		return d.unresolved(dialled, port, code, a)
	case strings.HasPrefix(a.problem, "lookup "), dialled != "" && notAddress != nil:
		return broken(
			"", "the apiserver dials the name of the Node, which is in no network",
			"start the apiserver with --kubelet-preferred-address-types=InternalIP,ExternalIP",
		)
	case code != http.StatusForbidden:
		return silentNode(a)
	case network == Outside:
		return broken(
			"", "the address of the Node is in no RemoteNetwork of the Cluster, so no gateway routes it",
			"add it to spec.cidrs of the RemoteNetwork of that site, or create one",
		)
	case !d.networks[network].allows(port):
		return d.networks[network].noPort(port)
	}
	return broken(
		"", "the edge refuses an address that its network permits: the owner of its machine allows less (--allow-target)",
		"ask the owner of the edge's machine to add this destination to --allow-target of edge-agent",
	)
}

func (n Network) noPort(port int) *Fault {
	return broken(
		"", "the network does not permit the port of the kubelet",
		fmt.Sprintf("add port %d to spec.ports of RemoteNetwork %s", port, n.Object.Name),
	)
}

// unresolved returns the fault of a Node that the apiserver dials by a name in a network. The answer of an edge is 502
// if DNS has no address for the name, and 403 if it dials none of them.
func (d Dialled) unresolved(name string, port, code int, a *attempt) *Fault {
	n := d.networks[ofName(name, d.networks)]
	look := "getent ahosts " + name + " on the machine of an edge shows what it resolves to: correct the DNS of that site"
	switch {
	case !n.allows(port):
		return n.noPort(port)
	case code == http.StatusBadGateway:
		return broken(
			"", "the DNS of RemoteNetwork "+n.Object.Name+" does not resolve the name: the edge asks the name servers of its "+
				"machine, and without search domains",
			look+", or correct spec.dnsSuffixes",
		)
	case code == http.StatusForbidden:
		return broken(
			"", "the name resolves to an address that the edge may not dial: outside of spec.cidrs of RemoteNetwork "+
				n.Object.Name+", of the edge's own machine, link-local, or refused by --allow-target",
			look+", or add the address to spec.cidrs",
		)
	}
	return silentNode(a)
}

// silentNode returns the fault of a Node that an edge has dialled without success.
func silentNode(a *attempt) *Fault {
	if a.took < edgeDialTime {
		return broken(
			"", "the edge is refused at once: no kubelet listens there, or the Tunnel's limit of connections is reached",
			"start the kubelet, and check its address and port; for a limit see spec.limits of the network's Tunnel",
		)
	}
	return broken(
		"", "the edge has no answer from the Node: its machine is down, or a firewall drops packets between them",
		"check the machine, and allow TCP from the edge to the port of the kubelet",
	)
}

// lookedUp returns the name in a message of a resolver: "lookup name: …" or "lookup name on server: …".
func lookedUp(message string) string {
	rest, _ := strings.CutPrefix(message, "lookup ")
	name, _, _ := strings.Cut(rest, ":")
	name, _, _ = strings.Cut(name, " ")
	return name
}

// proxied matches the apiserver's message about a proxy, whose address may contain anything:
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/server/egressselector/egress_selector.go
var proxied = regexp.MustCompile(`.* while dialing (\S+), code (\d+)`)

// dialledBy returns the destination in such a message, and the status code of the answer. Both are empty if the message
// has none, and then the port is that of a kubelet.
func dialledBy(message string) (host string, port, code int) {
	found := proxied.FindStringSubmatch(message)
	if found == nil {
		return "", kubeletPort, 0
	}
	code, _ = strconv.Atoi(found[2])
	host, number, err := net.SplitHostPort(found[1])
	if err != nil {
		return "", kubeletPort, code
	}
	if port, err = net.LookupPort("tcp", number); err != nil {
		port = kubeletPort
	}
	return host, port, code
}

// allows reports whether a network permits a port.
func (n Network) allows(port int) bool {
	ports := n.served().Ports
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p v1alpha1.NetworkPort) bool {
		return int(p.Port) <= port && port <= int(cmp.Or(p.EndPort, p.Port))
	})
}
