package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/internal/disk"
	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Kubeconfig returns the kubeconfig that Cluster API's controllers read.
func (c *Cluster) Kubeconfig(ctx context.Context) ([]byte, error) {
	secret, err := c.Secret(ctx, "-kubeconfig")
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", c, err)
	}
	return secret.Data["value"], nil
}

// WaitKubeconfig waits until the kubeconfig leads through the tunnel, and returns it.
func (c *Cluster) WaitKubeconfig(ctx context.Context) ([]byte, error) {
	err := proc.Wait(ctx, proc.StartTimeout, func(ctx context.Context) error {
		tunnel, err := c.Tunnel(ctx)
		if err != nil {
			return err
		}
		condition := meta.FindStatusCondition(tunnel.Status.Conditions, v1alpha1.ConditionKubeconfigReady)
		if condition == nil || condition.Status != metav1.ConditionTrue || condition.ObservedGeneration != tunnel.Generation {
			return fmt.Errorf("kubeconfig not ready: %+v", tunnel.Status.Conditions)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for the kubeconfig of %s: %w", c, err)
	}
	return c.Kubeconfig(ctx)
}

// restConfig returns a client configuration from a kubeconfig, as a process in the management network would use it.
func (l *Lab) restConfig(kubeconfig []byte) (*rest.Config, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	config.Dial, config.QPS = l.Network.Management.DialContext, -1
	return config, nil
}

// Clients returns clients from the kubeconfig that Cluster API reads now.
func (c *Cluster) Clients(ctx context.Context) (kubernetes.Interface, error) {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	config, err := c.lab.restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// Reach lists the namespaces of the workload apiserver with the kubeconfig that Cluster API reads now, over a new
// connection, and checks that it is the right apiserver.
func (c *Cluster) Reach(ctx context.Context) error {
	kubeconfig, err := c.Kubeconfig(ctx)
	if err != nil {
		return err
	}
	return c.ReachWith(ctx, kubeconfig)
}

// ReachWith is Reach with a given kubeconfig.
func (c *Cluster) ReachWith(ctx context.Context, kubeconfig []byte) error {
	config, err := c.lab.restConfig(kubeconfig)
	if err != nil {
		return err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	// The client's own method does not reach through client-go's layers.
	defer utilnet.CloseIdleConnectionsFor(httpClient.Transport)
	clients, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return err
	}
	got, err := clients.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want := &corev1.Namespace{}
	want.Name = metav1.NamespaceSystem
	if err := c.APIServer.Client.Get(ctx, client.ObjectKeyFromObject(want), want); err != nil {
		return err
	}
	if got.UID != want.UID {
		return fmt.Errorf("the wrong apiserver answered: namespace %s has uid %s, not %s", got.Name, got.UID, want.UID)
	}
	return nil
}

// Kubectl runs kubectl in the management network with a kubeconfig, and returns all of its output.
func (l *Lab) Kubectl(ctx context.Context, kubeconfig []byte, args ...string) (string, error) {
	cmd, err := l.KubectlCommand(ctx, kubeconfig, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("running kubectl %s: %w", strings.Join(args, " "), err)
	}
	return string(out), err
}

// KubectlCommand returns the command that Kubectl runs, for callers that set its input or its environment.
func (l *Lab) KubectlCommand(ctx context.Context, kubeconfig []byte, args ...string) (*exec.Cmd, error) {
	sum := sha256.Sum256(kubeconfig)
	file := l.File(hex.EncodeToString(sum[:8]) + ".kubeconfig")
	if _, err := os.Stat(file); err != nil {
		if err := disk.Replace(file, kubeconfig); err != nil { // another kubectl may read it now
			return nil, fmt.Errorf("writing a kubeconfig: %w", err)
		}
	}
	cmd := l.Network.Management.Command(ctx, l.Parts.RealPath("kubectl"), args...)
	// Discovery is cached by server name, so a cache shared with another lab would be wrong.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+file, "KUBECACHEDIR="+l.File("kubectl"))
	return cmd, nil
}

// RemoteConnectionProbe returns nil if Cluster API reports that it reaches the workload cluster.
func (c *Cluster) RemoteConnectionProbe(ctx context.Context) error {
	cluster, err := c.Get(ctx)
	if err != nil {
		return err
	}
	condition := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1.ClusterRemoteConnectionProbeCondition)
	switch {
	case condition == nil:
		return errors.New("cluster has no condition RemoteConnectionProbe yet")
	case condition.Status != metav1.ConditionTrue:
		return fmt.Errorf("condition RemoteConnectionProbe is %s: %s: %s", condition.Status, condition.Reason,
			condition.Message)
	}
	return nil
}

func jsonOf(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return data
}

// ManagementKubeconfig writes the administrator's kubeconfig of the management cluster, and returns the file.
func (l *Lab) ManagementKubeconfig() (string, error) {
	file := l.File("management.kubeconfig")
	kubeconfig, err := l.Management.AdminKubeconfig("management")
	return file, kube.WriteKubeconfig(file, kubeconfig, err)
}
