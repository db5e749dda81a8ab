package lab

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// fieldOwner is who applies manifests, as kubectl would.
const fieldOwner = client.FieldOwner("user")

// Apply applies manifests as kubectl apply --server-side does.
func (a *APIServer) Apply(ctx context.Context, manifests []byte) error {
	objects, err := parseObjects(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := a.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), fieldOwner, client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Cluster is a Cluster that somebody else has made, or will make.
func (l *Lab) Cluster(key types.NamespacedName) *Cluster {
	return &Cluster{NamespacedName: key, lab: l}
}

// Object reads an object of the Cluster's namespace.
func (c *Cluster) Object(ctx context.Context, apiVersion, kind, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	return object, c.lab.Management.Client.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: name}, object)
}

// Gone is the condition that the Cluster does not exist any more.
func (c *Cluster) Gone(ctx context.Context) error {
	_, err := c.Get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return fmt.Errorf("the Cluster %s is still there", c)
	}
	return err
}

// Inside is a client of the workload cluster that stands in the workload network itself, and dials the endpoint.
func (c *Cluster) Inside(ctx context.Context) (client.Client, error) {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	endpoint, err := c.lab.Cloud.endpoint(ctx, c.NamespacedName)
	if err != nil {
		return nil, err
	}
	for _, entry := range raw.Clusters {
		entry.Server, entry.ProxyURL, entry.TLSServerName = "https://"+endpoint.String(), "", ""
	}
	config, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	config.Dial, config.QPS = c.lab.Network.Workload.DialContext, -1
	return client.New(rest.CopyConfig(config), client.Options{})
}

// Clusterctl runs clusterctl as an administrator of the management cluster would; see SecondKubeconfig for that of a second one.
func (l *Lab) Clusterctl(ctx context.Context, args ...string) (string, error) {
	file, err := l.ManagementKubeconfig()
	if err != nil {
		return "", err
	}
	home := l.file("clusterctl")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", fmt.Errorf("making a home for clusterctl: %w", err)
	}
	cmd := l.Network.Management.Command(ctx, l.parts.real("clusterctl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "HOME="+home, "XDG_CONFIG_HOME="+home, "CLUSTERCTL_DISABLE_VERSIONCHECK=true")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// NextVersion is the version of Kubernetes that machines can be upgraded to: that of the pinned one's next patch release. Its programs
// are of the pinned one's sources, with another number; see tools/install.
func (l *Lab) NextVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, l.parts.real("kubeadm-next"), "version", "--output=short").Output()
	if err != nil {
		return "", fmt.Errorf("asking kubeadm for the next version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// machineImage is what the image of a machine has for a version of Kubernetes: the flags for its programs. Without a version it is the
// pinned one. Containers get the program of their image's tag, whatever the machine's version is; where there is but one program, that.
func (l *Lab) machineImage(ctx context.Context, version string) ([]string, error) {
	next, err := l.NextVersion(ctx)
	if err != nil {
		return nil, err
	}
	edgeAgent := l.parts.fairlead("edge-agent")
	programs := map[string]string{
		"edge-agent": edgeAgent, "fairlead-edge": edgeAgent, // by command and by image
		"kube-apiserver:" + next: l.parts.real("kube-apiserver-next"),
	}
	for _, name := range []string{"kubeadm", "kubeadm-next", "kubectl", "etcd", "kube-apiserver", "kube-controller-manager", "envoy"} {
		programs[name] = l.parts.real(name)
	}
	var flags []string
	if version == next {
		programs["kubeadm"] = programs["kubeadm-next"]
		flags = []string{"--kubelet-version=" + next}
	}
	for name, program := range programs {
		flags = append(flags, "--program="+name+"="+program)
	}
	return flags, nil
}

// Command is a command that root runs on the machine, with its files, its network and its processes.
func (m *CloudMachine) Command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	first, err := m.firstProcess()
	if err != nil {
		return nil, fmt.Errorf("looking for the first process of machine %s: %w", m.Name, err)
	}
	all := append([]string{"--target=" + first, "--mount", "--pid", "--net", "--uts", "--wd=/", program}, args...)
	return exec.CommandContext(ctx, "nsenter", all...), nil
}

// firstProcess is process 1 of the machine, as the lab sees it: the only child of the program that plays the machine.
func (m *CloudMachine) firstProcess() (string, error) {
	threads, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(m.process.PID()), "task", "*", "children"))
	if err != nil {
		return "", err
	}
	for _, file := range threads {
		children, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if pids := strings.Fields(string(children)); len(pids) > 0 {
			return pids[0], nil
		}
	}
	return "", fmt.Errorf("process %d has no child", m.process.PID())
}

// File is where the lab finds a file of the machine.
func (m *CloudMachine) File(path string) string { return filepath.Join(m.Dir, "disk", path) }
