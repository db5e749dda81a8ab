package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

const (
	domain = "tunnels.example.test"
	// patience bounds waits that involve several processes.
	patience = 60 * time.Second
	// year is how long the certificates of the apiservers are valid, like those of kubeadm.
	year = 365 * 24 * time.Hour
)

// planned is a Cluster that the demo will create.
type planned struct {
	name string
	mode v1alpha1.KubeconfigMode
	why  string
}

var (
	sniCluster     = planned{"berlin", v1alpha1.KubeconfigModeSNI, "its serving certificate has the tunnel hostname"}
	connectCluster = planned{"tokyo", v1alpha1.KubeconfigModeConnect, "its serving certificate was never touched"}
)

const namespace = "shops"

// hostname returns the planned Cluster's tunnel hostname.
func (p planned) hostname(d model.TunnelDomain) string {
	name, err := d.Hostname(model.Key{Namespace: namespace, Name: p.name})
	if err != nil {
		panic(err) // the input is constant
	}
	return name
}

// runSteps runs all steps. It returns the error of the first step that fails.
func runSteps(ctx context.Context, l *lab.Lab, s *story) error {
	s.step(
		"Three networks: management and workload, which can't reach each other, and a gateway with a leg in each that " +
			"forwards nothing.",
	)
	s.step(
		"Starting, all at once: etcd, kube-apiserver, Cluster API, controller, xds-server in the management network; " +
			"gateway-agent with Envoy;",
	)
	s.step("etcd and two kube-apiservers in the workload network.")
	if err := l.Start(ctx); err != nil {
		return err
	}
	s.result(true, "all of them are ready")
	if err := showWalls(ctx, l, s); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	var clusters []*lab.Cluster
	for _, plan := range []planned{sniCluster, connectCluster} {
		cluster, err := create(ctx, l, s, plan)
		if err != nil {
			return err
		}
		clusters = append(clusters, cluster)
		group.Go(func() error { return bringUp(groupCtx, l, s, cluster) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, cluster := range clusters {
		if err := showKubectl(ctx, l, s, cluster); err != nil {
			return err
		}
	}
	if err := showMemory(l, s); err != nil {
		return err
	}
	return showHow(ctx, l, s)
}

// showMemory prints the memory of all programs.
func showMemory(l *lab.Lab, s *story) error {
	memory, err := l.Memory()
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, m := range memory {
		_, _ = fmt.Fprintf(&lines, "%-14s %4d MiB\n", m.Name, m.Bytes>>20)
	}
	s.show("Resident memory of our processes:", lines.String())
	return nil
}

// showWalls shows that the networks are connected only by the gateway's public port.
func showWalls(ctx context.Context, l *lab.Lab, s *story) error {
	n := l.Network
	s.step("What can dial what?")
	workload, management := l.SNI.Endpoint.String(), l.Management.Endpoint.String()
	return tryAll(ctx, s, []attempt{
		{n.Management, "management network", workload, "the workload apiserver", false},
		{n.Workload, "workload network", management, "the management apiserver", false},
		{
			n.Workload,
			"workload network",
			address(netns.PublicName, netns.APIServerPort),
			"the gateway's port for clients",
			false,
		},
		{n.Workload, "workload network", address(netns.PublicName, netns.ConnectPort), "the gateway's proxy port", false},
		{n.Workload, "workload network", address(netns.PublicName, netns.PublicPort), "the gateway's public port", true},
	})
}

// attempt is a connection that one machine tries to open.
type attempt struct {
	from    *netns.Namespace
	who     string
	address string
	what    string
	reached bool // whether it must succeed
}

// tryAll dials, and returns an error if a result is not as expected.
func tryAll(ctx context.Context, s *story, attempts []attempt) error {
	for _, d := range attempts {
		err := dial(ctx, d.from, d.address)
		result := "connected"
		if err != nil {
			result = err.Error()
		}
		s.result((err == nil) == d.reached, "from the %s, %s: %s", d.who, d.what, result)
		if (err == nil) != d.reached {
			return fmt.Errorf("from the %s, %s (%s) is reached: %v, want %v", d.who, d.what, d.address, err == nil, d.reached)
		}
	}
	return nil
}

func dial(ctx context.Context, from *netns.Namespace, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// create creates a Cluster, and what its control-plane provider would create.
func create(ctx context.Context, l *lab.Lab, s *story, plan planned) (*lab.Cluster, error) {
	apiServer := l.SNI
	if plan.mode == v1alpha1.KubeconfigModeConnect {
		apiServer = l.Connect
	}
	cluster, err := l.CreateCluster(ctx, lab.ClusterSpec{Name: plan.name, Namespace: namespace, APIServer: apiServer})
	if err != nil {
		return nil, err
	}
	s.step(
		"%s: Cluster created with the label %s=%s, and, as a control-plane provider would, its CA and kubeconfig Secrets.",
		plan.name, v1alpha1.TunnelLabel, v1alpha1.TunnelEnabled,
	)
	mode := map[string]any{"kubeconfig": map[string]any{"mode": string(plan.mode)}}
	if err := cluster.PatchTunnel(ctx, mode); err != nil {
		return nil, err
	}
	s.step("%s: kubeconfig mode %s, as %s.", plan.name, plan.mode, plan.why)
	return cluster, nil
}

// bringUp starts the edge of a Cluster and waits until Cluster API reaches the workload apiserver.
func bringUp(ctx context.Context, l *lab.Lab, s *story, cluster *lab.Cluster) error {
	bootstrap, err := cluster.Bootstrap(ctx)
	if err != nil {
		return err
	}
	s.step(
		"%s: the controller made a Tunnel and the Secret %s%s; its file goes to an edge in the workload network.",
		cluster.Name, cluster.Name, v1alpha1.BootstrapSecretSuffix,
	)
	edge, err := l.StartEdge("edge-"+cluster.Name, bootstrap)
	if err != nil {
		return err
	}
	if err := edge.WaitReady(ctx, patience, edge.Ready); err != nil {
		return err
	}
	s.step("%s: the edge enrolled through the gateway's public port; its Envoy runs.", cluster.Name)
	kubeconfig, err := cluster.WaitKubeconfig(ctx)
	if err != nil {
		return err
	}
	s.show(cluster.Name+": the kubeconfig Secret that Cluster API reads now says", interesting(kubeconfig))
	if err := proc.Wait(ctx, patience, cluster.Reach); err != nil {
		return fmt.Errorf("waiting for the tunnel of %s: %w", cluster.Name, err)
	}
	s.result(true, "%s: the tunnel is up: the workload apiserver answers in the management network", cluster.Name)
	if err := cluster.SetProvisioned(ctx); err != nil {
		return err
	}
	s.step("%s: the providers report the machines as provisioned, so Cluster API connects.", cluster.Name)
	if err := proc.Wait(ctx, patience, cluster.RemoteConnectionProbe); err != nil {
		return fmt.Errorf("waiting for Cluster API to reach %s: %w", cluster.Name, err)
	}
	s.result(
		true, "%s: Cluster API's condition RemoteConnectionProbe is True, %.1f s after the Cluster was created", cluster.Name,
		time.Since(cluster.Created).Seconds(),
	)
	return nil
}

// interesting returns the lines of a kubeconfig that Fairlead sets.
func interesting(kubeconfig []byte) string {
	var lines []string
	for line := range strings.Lines(string(kubeconfig)) {
		for _, key := range []string{"server:", "tls-server-name:", "proxy-url:"} {
			if strings.HasPrefix(strings.TrimSpace(line), key) {
				lines = append(lines, strings.TrimSpace(line)+"\n")
			}
		}
	}
	return strings.Join(lines, "")
}

// showKubectl runs kubectl with the kubeconfig that Cluster API reads.
func showKubectl(ctx context.Context, l *lab.Lab, s *story, cluster *lab.Cluster) error {
	kubeconfig, err := cluster.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	file := l.Dir + "/" + cluster.Name + ".kubeconfig"
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	out, err := l.Kubectl(ctx, kubeconfig, "get", "namespaces")
	s.show(cluster.Name+": kubectl get namespaces, in the management network with that kubeconfig:", out)
	if err != nil {
		return err
	}
	if !strings.Contains(out, "kube-system") {
		return errors.New("kubectl shows no namespace kube-system")
	}
	return cluster.Reach(ctx)
}

// showHow prints commands to explore the demo.
func showHow(ctx context.Context, l *lab.Lab, s *story) error {
	file, err := l.ManagementKubeconfig()
	if err != nil {
		return err
	}
	kubeconfig, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading a kubeconfig: %w", err)
	}
	out, err := l.Kubectl(ctx, kubeconfig, "get", "clusters,tunnels", "--all-namespaces")
	s.show("kubectl get clusters,tunnels, in the management cluster:", out)
	if err != nil {
		return err
	}
	if err := showFairlead(ctx, l, s); err != nil {
		return err
	}
	inside := "ip netns exec " + l.Network.Management.Name + " bin/kubectl --kubeconfig "
	check := "ip netns exec " + l.Network.Management.Name + " bin/fairlead check -n " + namespace + " " +
		connectCluster.name + " --kubeconfig " + file + " " + inspection
	s.show(
		"To look around from another terminal:",
		inside+l.Dir+"/"+sniCluster.name+".kubeconfig get --raw /version\n"+inside+file+" get tunnels -A -o yaml\n"+
			check,
	)
	return nil
}

// inspection is the flag with which fairlead reaches the xds-server, which has no Pod here.
var inspection = "--xds-server=" + lab.InspectAddress(0)

// waitOK waits until fairlead reports no problem of any Cluster.
func waitOK(ctx context.Context, l *lab.Lab, s *story) error {
	healthy := func(ctx context.Context) error {
		out, err := l.Exec(ctx, "status", "-A", "-o", "json", inspection)
		if err != nil {
			return fmt.Errorf("fairlead status: %w", err)
		}
		var fleet struct {
			Rows []struct {
				Cluster  string `json:"cluster"`
				Health   string `json:"health"`
				Warnings []any  `json:"warnings"`
			} `json:"rows"`
		}
		if err := json.Unmarshal([]byte(out), &fleet); err != nil {
			return fmt.Errorf("reading what fairlead status prints: %w", err)
		}
		if len(fleet.Rows) != 2 {
			return fmt.Errorf("fairlead status shows %d Clusters, want 2", len(fleet.Rows))
		}
		for _, row := range fleet.Rows {
			if row.Health != "ok" {
				return fmt.Errorf("fairlead status: %s is %s: %v", row.Cluster, row.Health, row.Warnings)
			}
		}
		return nil
	}
	if err := proc.Wait(ctx, patience, healthy); err != nil {
		return err
	}
	s.result(true, "fairlead status: both Clusters are ok")
	return nil
}

// showFairlead shows the fleet, and every hop of the path to one workload cluster.
func showFairlead(ctx context.Context, l *lab.Lab, s *story) error {
	if err := waitOK(ctx, l, s); err != nil {
		return err
	}
	for _, args := range [][]string{{"status", "-A"}, {"check", "-n", namespace, sniCluster.name}} {
		out, err := l.Exec(ctx, append(args, inspection)...)
		s.show("fairlead "+strings.Join(args, " ")+":", out)
		if err != nil {
			return fmt.Errorf("fairlead %s: %w", args[0], err)
		}
	}
	return nil
}

func address(name string, port int) string { return net.JoinHostPort(name, fmt.Sprint(port)) }
