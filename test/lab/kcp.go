package lab

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
)

// kubeadmManagers are those of Cluster API's kubeadm providers. They look at their objects again more often than by default: a
// test has no ten minutes.
var kubeadmManagers = []manager{
	{name: "capi-bootstrap", config: "capi-bootstrap-config", webhook: 9445, health: 9441, flags: []string{"--sync-period=30s"}},
	{name: "capi-control-plane", config: "capi-control-plane-config", webhook: 9446, health: 9442, flags: []string{"--sync-period=30s"}},
}

// capiManagers are the managers that the lab runs, the core manager first.
func (l *Lab) capiManagers() []manager {
	if l.options.Machines {
		return append([]manager{coreManager}, kubeadmManagers...)
	}
	return []manager{coreManager}
}

// collectorHealth is where Kubernetes' controllers of the management cluster say how they are.
const collectorHealth = "127.0.0.1:10257"

// startCollector starts those of Kubernetes' own controllers without which Cluster API's objects would not end: what a
// Cluster owns is removed by the garbage collector, a namespace by the namespace controller.
func (l *Lab) startCollector(ctx context.Context) error {
	kubeconfig, err := l.Management.adminKubeconfig("management")
	file := l.file(l.Management.Name, "collector.kubeconfig")
	if err := writeKubeconfig(file, kubeconfig, err); err != nil {
		return err
	}
	process, err := Start(Spec{
		Name: "kube-controller-manager", Namespace: l.Network.Management, Program: l.parts.real("kube-controller-manager"),
		Log: l.LogFile("kube-controller-manager"),
		Args: []string{
			"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file, "--leader-elect=false",
			"--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller", "--bind-address=127.0.0.1",
			"--cert-dir=" + filepath.Join(l.Dir, "kube-controller-manager"),
		},
	})
	if err != nil {
		return fmt.Errorf("starting the garbage collector: %w", err)
	}
	l.collector = process
	l.onClose(func(context.Context) { process.Kill() })
	probe := &http.Client{Transport: &http.Transport{DialContext: l.Network.Management.DialContext, TLSClientConfig: insecure()}}
	return process.WaitReady(ctx, startTimeout, httpOK(probe, "https://"+collectorHealth+"/healthz"))
}
