package clusterclass_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/internal/eventually"
	"github.com/fairlead/fairlead/internal/freeport"
	"github.com/fairlead/fairlead/internal/kubetest"
	"github.com/fairlead/fairlead/test/lab/pki"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// extensionUser is the identity of the runtime extension in a management cluster. It has exactly the permissions of
// its manifest.
const extensionUser = "system:serviceaccount:fairlead-system:runtime-extension"

// world is a real apiserver with Cluster API's types, its real core manager with its webhooks, and Fairlead's runtime
// extension as a process. There is no other provider: a control plane is an object that the core manager creates from
// a ClusterClass.
var world struct {
	dir       string
	extension string // port of the hooks
	caPEM     []byte
	processes []*exec.Cmd
	running   sync.WaitGroup
}

// patience is how long a test waits for an immediate action of Cluster API's manager on a busy machine.
const patience = 2 * time.Minute

var server = kubetest.Server{Prepare: build, End: end}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "clusterclass-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	world.dir = dir
	code := server.Run(m)
	if code == 0 {
		_ = os.RemoveAll(dir)
	} else {
		fmt.Fprintln(os.Stderr, "logs are in", dir)
	}
	return code
}

// build starts the whole world.
func build(ctx context.Context, config *rest.Config) error {
	authority, err := pki.NewAuthority("webhooks")
	if err != nil {
		return err
	}
	world.caPEM = authority.CertPEM
	pair, err := authority.Issue(
		pki.LeafSpec{CommonName: "webhooks", Names: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth},
	)
	if err != nil {
		return err
	}
	caller, err := authority.Issue(pki.LeafSpec{CommonName: "capi-controller-manager", Usage: x509.ExtKeyUsageClientAuth})
	if err != nil {
		return err
	}
	admin, err := kubetest.NewClient(config)
	if err != nil {
		return err
	}
	errs := []error{
		os.WriteFile(filepath.Join(world.dir, "ca.crt"), authority.CertPEM, 0o600),
		os.WriteFile(
			filepath.Join(world.dir, "caller.crt"), caller.CertPEM, 0o600,
		), os.WriteFile(filepath.Join(world.dir, "caller.key"), caller.KeyPEM, 0o600),
		os.WriteFile(
			filepath.Join(world.dir, "tls.crt"), pair.CertPEM, 0o600,
		), os.WriteFile(filepath.Join(world.dir, "tls.key"), pair.KeyPEM, 0o600),
		writeKubeconfig("admin", config, ""), writeKubeconfig("extension", config, extensionUser),
		installTypes(ctx, admin), installExtension(ctx, admin),
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := startExtension(ctx); err != nil {
		return err
	}
	return startManager(ctx, admin)
}

// startManager starts Cluster API's core manager, and then makes the apiserver call its webhooks.
func startManager(ctx context.Context, admin client.Client) error {
	webhooks, health := freePort(), freePort()
	err := start(
		ctx, health, "../../bin/capi-core", "--feature-gates=ClusterTopology=true,RuntimeSDK=true",
		"--webhook-port="+webhooks, "--webhook-cert-dir="+world.dir, "--health-addr=127.0.0.1:"+health,
		"--diagnostics-address=0", "--v=2", "--runtime-extension-client-cert-file="+filepath.Join(world.dir, "caller.crt"),
		"--runtime-extension-client-key-file="+filepath.Join(world.dir, "caller.key"),
		"--kubeconfig="+filepath.Join(world.dir, "admin"),
	)
	if err != nil {
		return err
	}
	data, err := os.ReadFile("../../bin/capi-config/webhook/manifests.yaml")
	if err != nil {
		return err
	}
	configurations, err := kubetest.Decode(data)
	if err != nil {
		return err
	}
	for _, c := range configurations {
		list, _, err := unstructured.NestedSlice(c.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, w := range list {
			path, _, err := unstructured.NestedString(w.(map[string]any), "clientConfig", "service", "path")
			if err != nil {
				return err
			}
			w.(map[string]any)["clientConfig"] = map[string]any{
				"url":      "https://127.0.0.1:" + webhooks + path,
				"caBundle": base64Of(world.caPEM),
			}
		}
		c.Object["webhooks"] = list
		if err := admin.Create(ctx, c); err != nil {
			return fmt.Errorf("installing webhooks: %w", err)
		}
	}
	return nil
}

func startExtension(ctx context.Context) error {
	program := filepath.Join(world.dir, "runtime-extension")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program,
		"../../cmd/runtime-extension").CombinedOutput(); err != nil {
		return fmt.Errorf("building runtime-extension: %w: %s", err, out)
	}
	world.extension = freePort()
	health := freePort()
	return start(
		ctx, health, program, "--tunnel-domain="+defaults.TunnelDomain, "--edge-image="+defaults.Image,
		"--listen=127.0.0.1:"+world.extension, "--cert-dir="+world.dir, "--client-ca="+filepath.Join(world.dir, "ca.crt"),
		"--health-listen=127.0.0.1:"+health, "--kubeconfig="+filepath.Join(world.dir, "extension"),
	)
}

// start starts a program, and waits until it is ready.
func start(ctx context.Context, health, program string, args ...string) error {
	name := filepath.Base(program)
	log, err := os.Create(filepath.Join(world.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	world.processes = append(world.processes, cmd)
	world.running.Go(func() { _ = cmd.Wait() })
	return proc.Wait(ctx, 3*time.Minute, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+health+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", name, response.Status)
		}
		return nil
	})
}

func end() error {
	for _, cmd := range world.processes {
		_ = cmd.Process.Kill()
	}
	world.running.Wait()
	return nil
}

// writeKubeconfig writes a kubeconfig of an administrator, or of user if it is not empty.
func writeKubeconfig(name string, config *rest.Config, user string) error {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Impersonate:           user,
	}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	return clientcmd.WriteToFile(*kubeconfig, filepath.Join(world.dir, name))
}

func freePort() string {
	port, err := freeport.Choose()
	if err != nil {
		panic(err)
	}
	return strconv.Itoa(port)
}

// management returns an administrator's client of the world.
func management(t *testing.T) client.Client {
	t.Helper()
	admin, err := kubetest.NewClient(server.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	return admin
}

// create creates objects. A ClusterClass is accepted only when the manager has observed its templates.
func create(t *testing.T, admin client.Client, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		eventually.True(t, patience, "creating "+o.GetName(), func() error {
			return client.IgnoreAlreadyExists(admin.Create(t.Context(), o))
		})
	}
}

// controlPlane waits for the control plane of a Cluster, and returns its kubeadmConfigSpec.
func controlPlane(t *testing.T, admin client.Client, cluster client.ObjectKey) map[string]any {
	t.Helper()
	var config map[string]any
	eventually.True(t, patience, "the control plane of "+cluster.Name, func() error {
		var c clusterv1.Cluster
		if err := admin.Get(t.Context(), cluster, &c); err != nil {
			return err
		}
		kcp := &unstructured.Unstructured{}
		kcp.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
		kcp.SetKind("KubeadmControlPlane")
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: cluster.Namespace, Name: c.Spec.ControlPlaneRef.Name}, kcp)
		if err != nil {
			if apierrors.IsNotFound(err) || c.Spec.ControlPlaneRef.Name == "" {
				return fmt.Errorf("there is none: %v", c.Status.Conditions)
			}
			return err
		}
		config, _, err = unstructured.NestedMap(kcp.Object, "spec", "kubeadmConfigSpec")
		return err
	})
	return config
}
