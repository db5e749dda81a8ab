package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// Namespace and users of the installation: those of deploy/kubernetes.
const (
	InstallationNamespace = "fairlead-system"

	controllerAccount = "controller"
	xdsServerAccount  = "xds-server"
	gatewayAccount    = "gateway"

	controllerHealth = "127.0.0.1:8081"
	xdsServerHealth  = "127.0.0.1:8083"
)

// gatewayReplica is the one gateway of a lab.
const gatewayReplica = "gateway-0"

// startFairlead installs Fairlead in the management cluster, starts its three parts that don't belong to an edge, and
// waits until they are ready. Cluster API's types must be served before the controllers look for them.
func (l *Lab) startFairlead(ctx context.Context, crds <-chan struct{}) error {
	if err := l.installFairlead(ctx); err != nil {
		return err
	}
	select {
	case <-crds:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.startController(ctx) })
	group.Go(func() error { return l.startXDSServer(ctx) })
	group.Go(func() error { return l.startGateway(ctx) })
	return group.Wait()
}

// installFairlead applies what of deploy/kubernetes doesn't run: types, permissions and policies.
func (l *Lab) installFairlead(ctx context.Context) error {
	objects, err := readObjects(filepath.Join(l.parts.Root, "deploy", "kubernetes"))
	if err != nil {
		return err
	}
	order := [][]string{
		{"Namespace", "CustomResourceDefinition"},
		{"ServiceAccount", "Role", "ClusterRole", "ValidatingAdmissionPolicy"},
		{"RoleBinding", "ClusterRoleBinding", "ValidatingAdmissionPolicyBinding"},
	}
	for _, kinds := range order {
		selected := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) })
		if err := l.Management.createAll(ctx, selected); err != nil {
			return fmt.Errorf("installing Fairlead: %w", err)
		}
	}
	crds := slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() != "CustomResourceDefinition" })
	return l.Management.waitEstablished(ctx, crds)
}

func (l *Lab) startController(ctx context.Context) (err error) {
	l.Controller, err = l.startManaged(ctx, "controller", controllerAccount, controllerHealth,
		"--tunnel-domain="+l.Domain, "--namespace="+InstallationNamespace, "--leader-elect", "--leader-elect-lease=2s", "--metrics-listen=127.0.0.1:8082",
		"--public-address="+host(PublicName, PublicPort), "--apiserver-address="+host(GatewayName, APIServerPort),
		"--connect-address="+host(GatewayName, ConnectPort), "--tunnel-dns=auto", "--xds-server-user="+user(xdsServerAccount))
	return err
}

func (l *Lab) startXDSServer(ctx context.Context) (err error) {
	l.XDSServer, err = l.startManaged(ctx, "xds-server", xdsServerAccount, xdsServerHealth,
		"--listen="+netip.AddrPortFrom(managementAddress, xdsPort).String(), "--tunnel-domain="+l.Domain, "--namespace="+InstallationNamespace,
		"--public-address="+host(PublicName, PublicPort), "--control-address="+host(xdsServerName, xdsPort),
		"--gateway="+gatewayReplica, "--gateway-user="+user(gatewayAccount), "--state-dir="+l.file("xds-server"))
	return err
}

// startManaged starts a program that works on the management cluster with a ServiceAccount's permissions, and waits
// until it says that it is ready.
func (l *Lab) startManaged(ctx context.Context, name, account, health string, args ...string) (*Service, error) {
	if err := os.MkdirAll(l.file(name), 0o700); err != nil {
		return nil, fmt.Errorf("making a folder for %s: %w", name, err)
	}
	token, err := l.Management.token(ctx, account, authenticationv1.TokenRequestSpec{})
	if err != nil {
		return nil, err
	}
	kubeconfig, err := Kubeconfig("management", l.Management.URL(), l.Management.CA.CertPEM, clientcmdapi.AuthInfo{Token: token})
	if err := writeKubeconfig(l.file(name, "kubeconfig"), kubeconfig, err); err != nil {
		return nil, err
	}
	service, err := l.supervise(Spec{
		Name: name, Namespace: l.Network.Management, Program: l.parts.fairlead(name),
		Args: append([]string{"--kubeconfig=" + l.file(name, "kubeconfig"), "--health-listen=" + health, "--log-level=debug"}, args...),
	})
	if err != nil {
		return nil, err
	}
	return service, service.WaitReady(ctx, startTimeout, ready(l.Network.Management, health))
}

// startGateway starts the gateway as soon as the controller has made its credentials.
func (l *Lab) startGateway(ctx context.Context) error {
	dir := l.file(gatewayReplica)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making a folder for the gateway: %w", err)
	}
	secret, err := l.waitSecret(ctx, types.NamespacedName{Namespace: InstallationNamespace, Name: v1alpha1.GatewaySecretName}, v1alpha1.BootstrapTokenKey)
	if err != nil {
		return err
	}
	credential := "--token-file=" + filepath.Join(dir, "token")
	token := string(secret.Data[v1alpha1.BootstrapTokenKey])
	if l.options.GatewayPod {
		credential = "--service-account-token-file=" + filepath.Join(dir, "token")
		if token, err = l.gatewayPodToken(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600),
		os.WriteFile(filepath.Join(dir, "ca.crt"), secret.Data[v1alpha1.BootstrapCAKey], 0o644)); err != nil {
		return fmt.Errorf("writing the gateway's credentials: %w", err)
	}
	const health = "127.0.0.1:8080"
	l.Gateway, err = l.startAgent(ctx, agentSpec{
		name: gatewayReplica, program: "gateway-agent", namespace: l.Network.Gateway, dir: filepath.Join(dir, "state"), health: health,
		args: []string{
			"--name=" + gatewayReplica, "--xds-server=" + host(xdsServerName, xdsPort), "--tunnel-domain=" + l.Domain,
			"--ca-file=" + filepath.Join(dir, "ca.crt"), credential,
			"--public-listen=" + netip.AddrPortFrom(gatewayPublic, PublicPort).String(),
			"--apiserver-listen=" + netip.AddrPortFrom(gatewayInside, APIServerPort).String(),
			"--connect-listen=" + netip.AddrPortFrom(gatewayInside, ConnectPort).String(),
		},
	})
	return err
}

// gatewayPodToken makes the Pod of the gateway out of the installation's own manifest, and the token that a kubelet would
// mount into it.
func (l *Lab) gatewayPodToken(ctx context.Context) (string, error) {
	objects, err := readObjects(filepath.Join(l.parts.Root, "deploy", "kubernetes", "gateway.yaml"))
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "StatefulSet" })
	if i < 0 {
		return "", errors.New("making the gateway's Pod: there is no StatefulSet in its manifest")
	}
	set := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, set); err != nil {
		return "", fmt.Errorf("making the gateway's Pod: %w", err)
	}
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name = set.Namespace, gatewayReplica
	if err := l.Management.Client.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("creating the gateway's Pod: %w", err)
	}
	return l.Management.token(ctx, gatewayAccount, authenticationv1.TokenRequestSpec{
		Audiences:      []string{"fairlead.dev"},
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	})
}

// token asks for a token of a ServiceAccount of the installation.
func (a *APIServer) token(ctx context.Context, account string, spec authenticationv1.TokenRequestSpec) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: spec}
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: InstallationNamespace, Name: account}}
	if err := a.Client.SubResource("token").Create(ctx, serviceAccount, request); err != nil {
		return "", fmt.Errorf("asking for a token of %s: %w", account, err)
	}
	return request.Status.Token, nil
}

// waitSecret waits until a Secret has a key.
func (l *Lab) waitSecret(ctx context.Context, name types.NamespacedName, key string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := Wait(ctx, startTimeout, func(ctx context.Context) error {
		if err := l.Management.Client.Get(ctx, name, secret); err != nil {
			return err
		}
		if len(secret.Data[key]) == 0 {
			return fmt.Errorf("secret %s has no %s", name, key)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for Secret %s: %w", name, err)
	}
	return secret, nil
}

// ready is the condition that a program of ours calls itself ready.
func ready(namespace *Namespace, health string) func(context.Context) error {
	probe := &http.Client{Transport: &http.Transport{DialContext: namespace.DialContext, DisableKeepAlives: true}}
	return httpOK(probe, "http://"+health+"/readyz")
}

func host(name string, port int) string { return name + ":" + strconv.Itoa(port) }

func user(account string) string {
	return "system:serviceaccount:" + InstallationNamespace + ":" + account
}

// ControllerReady is the condition that the controller calls itself ready.
func (l *Lab) ControllerReady(ctx context.Context) error {
	return ready(l.Network.Management, controllerHealth)(ctx)
}

// XDSServerReady is the condition that the xds-server calls itself ready.
func (l *Lab) XDSServerReady(ctx context.Context) error {
	return ready(l.Network.Management, xdsServerHealth)(ctx)
}
