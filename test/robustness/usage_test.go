package robustness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// usage records what every process of ours uses. Right after a fault a process may still be starting, so it is tried
// again. After the run it is the check that decides what a failure means.
func (in *installation) usage(ctx context.Context, after bool) error {
	var all []Entry
	err := proc.Wait(ctx, settle, func(ctx context.Context) (err error) {
		all, err = in.measure(ctx)
		return err
	})
	for _, e := range all {
		e.After = after
		in.history.Add(e)
	}
	if after && err != nil {
		in.history.Add(Entry{Kind: KindUsage, After: true, Error: err.Error()})
		return nil
	}
	return err
}

func (in *installation) measure(ctx context.Context) ([]Entry, error) {
	var edges []*lab.Agent
	for _, m := range in.all() {
		m.mu.Lock()
		for _, p := range m.edges {
			edges = append(edges, p.Agent)
		}
		m.mu.Unlock()
	}
	for _, r := range in.remotes {
		edges = append(edges, r.edge, r.Egress)
	}
	goroutines, heap := map[string]uint64{}, map[string]uint64{}
	for _, target := range in.Targets(edges...) {
		n, err := target.Goroutines(ctx)
		if err == nil && strings.HasSuffix(target.Job, "-agent") {
			heap[target.Name+"-envoy"], err = target.Heap(ctx)
		}
		if err != nil {
			return nil, err
		}
		goroutines[target.Name] = n
	}
	var all []Entry
	var errs []error
	add := func(kind, name string, pid int, err error) {
		e := Entry{Kind: KindUsage, Process: kind, Name: name, Goroutines: goroutines[name], Heap: heap[name]}
		if err == nil {
			e.Memory, err = proc.RSS(pid)
		}
		if err == nil {
			var files int
			files, err = proc.Files(pid)
			e.Files = uint64(files)
		}
		all, errs = append(all, e), append(errs, err)
	}
	services := map[string][]*proc.Service{"controller": in.Controllers, "xds-server": in.XDSServers}
	for kind, some := range services {
		for _, s := range some {
			add(kind, s.Process().Name, s.Process().PID(), nil)
		}
	}
	for kind, some := range map[string][]*lab.Agent{"gateway": in.Gateways, "edge": edges} {
		for _, a := range some {
			name := a.Process().Name
			add(kind+"-agent", name, a.Process().PID(), nil)
			size, err := sizeOf(a.StateDir)
			all[len(all)-1].Disk, errs = size, append(errs, err)
			pid, err := a.EnvoyPID()
			add(kind+"-envoy", name+"-envoy", pid, err)
		}
	}
	objects, err := objects(ctx, in.Lab)
	errs = append(errs, err)
	all = append(all, Entry{
		Kind: KindUsage, Process: "apiserver", Name: "objects of the management cluster", Objects: objects,
	})
	return all, errors.Join(errs...)
}

// sizeOf returns the number of bytes in a folder.
func sizeOf(dir string) (sum uint64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was replaced
		}
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sum += uint64(info.Size())
		}
		return nil
	})
	return sum, err
}

// objects returns the number of objects of the kinds that we, or Cluster API for us, create in a management cluster.
// It does not count CertificateSigningRequests, which Kubernetes deletes after an hour, because that controller does
// not run here.
func objects(ctx context.Context, l *lab.Lab) (sum uint64, err error) {
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &coordinationv1.LeaseList{},
		&v1alpha1.TunnelList{}, &v1alpha1.RemoteNetworkList{},
		&clusterv1.ClusterList{},
	} {
		if err := l.Management.Client.List(ctx, list); err != nil {
			return 0, fmt.Errorf("counting objects: %w", err)
		}
		sum += uint64(meta.LenList(list))
	}
	return sum, nil
}
