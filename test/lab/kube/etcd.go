package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

const (
	// etcdPort and etcdPeerPort are the ports of the first member. Those of each further one are two higher.
	etcdPort, etcdPeerPort = 2379, 2380
)

// patient makes members that share two busy cores with everything else elect no leader because of that. A single member
// would only start later.
func patient(members int) []string {
	if members == 1 {
		return nil
	}
	return []string{"--heartbeat-interval=250", "--election-timeout=2500"}
}

func etcdAt(port, member int) string { return fmt.Sprintf("http://127.0.0.1:%d", port+2*member) }

func etcdURL(member int) string { return etcdAt(etcdPort, member) }

// StartEtcd starts an etcd that does not sync to disk: nothing here outlives the machine.
func StartEtcd(ctx context.Context, w *workspace.Workspace, namespace *netns.Namespace) (*proc.Process, error) {
	members, err := StartEtcdMembers(ctx, w, namespace, 1)
	if err != nil {
		return nil, err
	}
	return members[0], nil
}

// StartEtcdMembers starts an etcd with some members in one namespace, and returns when all of them are ready. An
// apiserver uses all of them with EtcdServers among its flags.
func StartEtcdMembers(
	ctx context.Context, w *workspace.Workspace, namespace *netns.Namespace, n int,
) (members []*proc.Process, err error) {
	var peers []string
	for i := range n {
		peers = append(peers, etcdMember(i)+"="+etcdAt(etcdPeerPort, i))
	}
	for i := range n {
		name := EtcdName(namespace)
		if i > 0 {
			name = fmt.Sprintf("%s-%d", name, i)
		}
		etcd, err := proc.Start(proc.Spec{
			Name: name, Namespace: namespace, Program: w.Parts.RealPath("etcd"), Log: w.LogFile(name),
			Args: append([]string{
				"--name=" + etcdMember(i), "--data-dir=" + w.File(name), "--unsafe-no-fsync", "--log-level=warn",
				"--listen-client-urls=" + etcdURL(i), "--advertise-client-urls=" + etcdURL(i),
				"--listen-peer-urls=" + etcdAt(etcdPeerPort, i), "--initial-advertise-peer-urls=" + etcdAt(etcdPeerPort, i),
				"--initial-cluster=" + strings.Join(peers, ","),
			}, patient(n)...),
		})
		if err != nil {
			return nil, err
		}
		w.OnClose(func(context.Context) { etcd.Kill() })
		members = append(members, etcd)
	}
	for i, etcd := range members {
		ready := proc.Answers200(etcdClient(namespace), etcdURL(i)+"/readyz")
		if err := etcd.WaitReady(ctx, proc.StartTimeout, ready); err != nil {
			return nil, err
		}
	}
	return members, nil
}

func etcdMember(i int) string { return fmt.Sprintf("lab-%d", i) }

func etcdClient(namespace *netns.Namespace) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: namespace.DialContext, DisableKeepAlives: true}}
}

// EtcdServers returns the flag of an apiserver whose etcd has some members.
func EtcdServers(n int) string {
	var all []string
	for i := range n {
		all = append(all, etcdURL(i))
	}
	return "--etcd-servers=" + strings.Join(all, ",")
}

// ErrNoLeader is what a member of etcd reports if too few members are left.
var ErrNoLeader = errors.New("RAFT NO LEADER")

// EtcdHealth asks a member of etcd for its health. The error wraps ErrNoLeader if it has no quorum.
func EtcdHealth(ctx context.Context, namespace *netns.Namespace, member int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, etcdURL(member)+"/health", http.NoBody)
	if err != nil {
		return err
	}
	response, err := etcdClient(namespace).Do(request)
	if err != nil {
		return fmt.Errorf("asking etcd for its health: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var health struct{ Health, Reason string }
	if err := json.NewDecoder(response.Body).Decode(&health); err != nil {
		return fmt.Errorf("reading the health of etcd: %w", err)
	}
	switch {
	case health.Health == "true":
		return nil
	case health.Reason == ErrNoLeader.Error():
		return fmt.Errorf("etcd reports: %w", ErrNoLeader)
	}
	return fmt.Errorf("etcd reports: %s", health.Reason)
}

// EtcdName returns the name of the etcd in a namespace, of the process and the folder of its first member.
func EtcdName(namespace *netns.Namespace) string {
	return "etcd-" + filepath.Base(namespace.Name[len(netns.Prefix):])
}
