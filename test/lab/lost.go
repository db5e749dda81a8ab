package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// LoseManagement simulates the loss of the management cluster's machines: etcd and apiserver with their disks, Cluster
// API, and everything of Fairlead except the edges.
func (l *Lab) LoseManagement() error {
	var group sync.WaitGroup
	for _, gateway := range l.Gateways {
		group.Go(func() {
			gateway.Hold()
			_ = gateway.KillEnvoy() // it may be down
		})
	}
	for _, p := range []*Pods{l.ControllerPods(), l.XDSServerPods()} {
		for i := range p.services {
			group.Go(p.services[i].Hold)
		}
	}
	group.Wait()
	for _, process := range slices.Concat(l.CAPI, []*proc.Process{l.collector, l.Management.Process, l.Etcd}) {
		if process != nil {
			process.Kill()
		}
	}
	return errors.Join(os.RemoveAll(l.etcdFolder()), os.RemoveAll(l.File(l.Management.Name)))
}

// NewManagement starts another management cluster, with only Cluster API in it. Gateways keep the addresses of their
// Services, as if names had been changed to resolve to new ones.
func (l *Lab) NewManagement(ctx context.Context) error {
	if err := l.startManagementCluster(ctx); err != nil {
		return fmt.Errorf("starting another management cluster: %w", err)
	}
	if err := l.startCollector(ctx); err != nil {
		return err
	}
	return l.startCAPI(ctx, make(chan struct{}))
}

// SaveEtcd copies the disk of the stopped etcd of the management cluster, in place of a snapshot.
func (l *Lab) SaveEtcd(folder string) error {
	if err := l.Etcd.Freeze(); err != nil {
		return fmt.Errorf("saving etcd: %w", err)
	}
	return errors.Join(os.CopyFS(folder, os.DirFS(l.etcdFolder())), l.Etcd.Thaw())
}

// RestoreEtcd starts the management cluster again after LoseManagement, with the disk that SaveEtcd copied and another
// PKI.
func (l *Lab) RestoreEtcd(ctx context.Context, folder string) error {
	if err := os.CopyFS(l.etcdFolder(), os.DirFS(folder)); err != nil {
		return fmt.Errorf("restoring etcd: %w", err)
	}
	return l.NewManagement(ctx)
}

func (l *Lab) etcdFolder() string {
	return l.File(kube.EtcdName(l.Network.Management))
}

// Pods are the processes of one of our Deployments, with methods that act as their kubelet.
type Pods struct {
	lab      *Lab
	program  string
	account  string
	services []*proc.Service
	health   func(int) string
}

// ControllerPods returns the Pods of the controller.
func (l *Lab) ControllerPods() *Pods {
	health := func(i int) string {
		if i == 0 {
			return controllerHealth
		}
		return netns.HostPort("127.0.0.1", controllersHealth+i)
	}
	return &Pods{lab: l, program: "controller", account: controllerAccount, services: l.Controllers, health: health}
}

// XDSServerPods returns the Pods of the xds-server.
func (l *Lab) XDSServerPods() *Pods {
	return &Pods{lab: l, program: "xds-server", account: xdsServerAccount, services: l.XDSServers, health: xdsServerHealth}
}

// Len returns their number.
func (p *Pods) Len() int { return len(p.services) }

// End ends one as a deleted Pod is ended.
func (p *Pods) End(i int, patience time.Duration) error { return p.services[i].Terminate(patience) }

// Start starts another in place of one that has ended: with a new disk, and a token of the present management cluster.
// It returns when it is ready.
func (p *Pods) Start(ctx context.Context, i int) error {
	s := p.services[i]
	dir := p.lab.File(s.Process().Name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("making a disk for %s: %w", s.Process().Name, err)
	}
	kubeconfig, err := p.lab.AccountKubeconfig(ctx, p.account)
	if err := kube.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), kubeconfig, err); err != nil {
		return err
	}
	if err := p.lab.Become(ctx, s, p.lab.Parts.OwnPath(p.program)); err != nil {
		return err
	}
	s.Resume()
	return s.WaitReady(ctx, proc.StartTimeout, ready(p.lab.Network.Management, p.health(i)))
}
