package kube

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/fairlead/fairlead/test/lab/proc"
	"github.com/fairlead/fairlead/test/lab/workspace"
)

// collectorHealth is the health endpoint of Kubernetes' controllers of the management cluster.
const collectorHealth = "127.0.0.1:10257"

// StartCollector starts the Kubernetes controllers that remove deleted objects, which Cluster API's objects need to
// end: the garbage collector for objects that a Cluster owns, and the namespace controller.
func StartCollector(ctx context.Context, w *workspace.Workspace, management *APIServer) (*proc.Process, error) {
	kubeconfig, err := management.AdminKubeconfig("management")
	file := w.File(management.Name, "collector.kubeconfig")
	if err := WriteKubeconfig(file, kubeconfig, err); err != nil {
		return nil, err
	}
	process, err := proc.Start(proc.Spec{
		Name: "kube-controller-manager", Namespace: management.Namespace,
		Program: w.Parts.RealPath("kube-controller-manager"),
		Log:     w.LogFile("kube-controller-manager"),
		Args: []string{
			"--kubeconfig=" + file, "--authentication-kubeconfig=" + file, "--authorization-kubeconfig=" + file,
			"--leader-elect=false",
			"--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller",
			"--bind-address=127.0.0.1",
			"--cert-dir=" + filepath.Join(w.Dir, "kube-controller-manager"),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("starting the garbage collector: %w", err)
	}
	w.OnClose(func(context.Context) { process.Kill() })
	probe := &http.Client{Transport: &http.Transport{
		DialContext:     management.Namespace.DialContext,
		TLSClientConfig: proc.Insecure(),
	}}
	return process, process.WaitReady(ctx, proc.StartTimeout,
		proc.Answers200(probe, "https://"+collectorHealth+"/healthz"))
}
