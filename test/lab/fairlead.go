package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/fairlead/fairlead/test/lab/kube"
	"github.com/fairlead/fairlead/test/lab/netns"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// Namespace and users of the installation, as in deploy/kubernetes.
const (
	InstallationNamespace = "fairlead-system"

	controllerAccount = "controller"
	xdsServerAccount  = "xds-server"
	gatewayAccount    = "gateway"

	controllerHealth = "127.0.0.1:8081"
	// controllersHealth precedes the port of the second controller.
	controllersHealth = 8180
	// webhookListen is next to the ports of Cluster API's webhooks.
	webhookListen = "127.0.0.1:9447"
)

// startFairlead installs Fairlead in the management cluster, starts everything except edges, and waits until it is
// ready. Cluster API's types must be served before the controllers look for them.
func (l *Lab) startFairlead(ctx context.Context, crds <-chan struct{}) error {
	install := l.options.Install
	if install == nil {
		install = installAll
	}
	if err := install(ctx, l); err != nil {
		return err
	}
	select {
	case <-crds:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.options.Prepare != nil {
		if err := l.options.Prepare(ctx, l); err != nil {
			return err
		}
	}
	l.XDSServers, l.Gateways = make([]*proc.Service, l.options.XDSServers), make([]*Agent, l.options.Gateways)
	l.Controllers = make([]*proc.Service, l.options.Controllers)
	group, ctx := errgroup.WithContext(ctx)
	for i := range l.XDSServers {
		address, err := l.Network.AddXDSServer(ctx, i)
		if err != nil {
			return err
		}
		group.Go(func() error { return l.startXDSServer(ctx, i, address) })
	}
	for i := range l.Controllers {
		group.Go(func() error { return l.startController(ctx, i) })
	}
	for i := range l.Gateways {
		group.Go(func() error { return l.startGateway(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	l.Controller = l.Controllers[0]
	return nil
}

// installAll is the default of Options.Install.
func installAll(ctx context.Context, l *Lab) error {
	if err := l.installFairlead(ctx); err != nil {
		return err
	}
	return l.createGatewaySet(ctx)
}

// installFairlead applies the parts of deploy/kubernetes that are not programs: types, permissions, policies and the
// webhook.
func (l *Lab) installFairlead(ctx context.Context) error {
	objects, err := kube.ReadObjects(filepath.Join(l.Parts.Root, "deploy", "kubernetes"))
	if err != nil {
		return err
	}
	if err := pointWebhooks(objects, webhookListen); err != nil {
		return err
	}
	order := [][]string{
		{"Namespace", "CustomResourceDefinition", "MutatingWebhookConfiguration"},
		{"ServiceAccount", "Role", "ClusterRole", "ValidatingAdmissionPolicy"},
		{"RoleBinding", "ClusterRoleBinding", "ValidatingAdmissionPolicyBinding"},
	}
	for _, kinds := range order {
		selected := slices.DeleteFunc(slices.Clone(objects),
			func(o *unstructured.Unstructured) bool { return !slices.Contains(kinds, o.GetKind()) })
		if err := l.Management.CreateAll(ctx, selected); err != nil {
			return fmt.Errorf("installing Fairlead: %w", err)
		}
	}
	crds := slices.DeleteFunc(objects,
		func(o *unstructured.Unstructured) bool { return o.GetKind() != "CustomResourceDefinition" })
	return l.Management.WaitEstablished(ctx, crds)
}

// pointWebhooks points webhook configurations at an address, because there are no Services. The controller fills in the
// CA.
func pointWebhooks(objects []*unstructured.Unstructured, address string) error {
	for _, configuration := range objects {
		if configuration.GetKind() != "MutatingWebhookConfiguration" {
			continue
		}
		webhooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
		if err != nil {
			return fmt.Errorf("reading webhooks of %s: %w", configuration.GetName(), err)
		}
		for _, webhook := range webhooks {
			fields := webhook.(map[string]any)
			path, _, err := unstructured.NestedString(fields, "clientConfig", "service", "path")
			if err != nil {
				return fmt.Errorf("reading webhooks of %s: %w", configuration.GetName(), err)
			}
			fields["clientConfig"] = map[string]any{"url": "https://" + address + path}
		}
		configuration.Object["webhooks"] = webhooks
	}
	return nil
}

func (l *Lab) startController(ctx context.Context, i int) (err error) {
	name, health, metrics, webhooks := "controller", controllerHealth, l.controllerMetrics(i), webhookListen
	if i > 0 {
		name, health, webhooks = "controller-"+strconv.Itoa(i), netns.HostPort("127.0.0.1", controllersHealth+i), "0"
	}
	l.Controllers[i], err = l.startManaged(ctx, managed{
		name: name, program: "controller", account: controllerAccount, health: health,
		args: append([]string{
			"--tunnel-domain=" + l.Domain, "--namespace=" + InstallationNamespace, "--leader-elect", "--leader-elect-lease=2s",
			"--metrics-listen=" + metrics,
			"--public-address=" + netns.HostPort(l.Network.PublicName, netns.PublicPort),
			"--apiserver-address=" + netns.HostPort(netns.GatewayName, netns.APIServerPort),
			"--connect-address=" + netns.HostPort(netns.GatewayName, netns.ConnectPort), "--tunnel-dns=auto",
			"--xds-server-user=" + user(xdsServerAccount),
			"--xds-server=" + netns.HostPort(netns.XDSServerName, netns.XDSPort), "--webhook-listen=" + webhooks,
		}, append(l.perTunnel(), l.options.ControllerFlags...)...),
	})
	return err
}

func (l *Lab) startXDSServer(ctx context.Context, i int, address netip.Addr) (err error) {
	name := xdsServer(i)
	args := []string{
		"--listen=" + l.listen(address, netns.XDSPort), "--tunnel-domain=" + l.Domain,
		"--namespace=" + InstallationNamespace,
		"--public-address=" + netns.HostPort(l.Network.PublicName, netns.PublicPort),
		"--control-address=" + netns.HostPort(netns.XDSServerName, netns.XDSPort),
		"--gateway-user=" + user(gatewayAccount), "--state-dir=" + l.File(name),
		"--gateway-statefulset=" + gatewaySet, "--gateway-workers=" + strconv.Itoa(l.options.GatewayWorkers),
		"--inspect-listen=" + InspectAddress(i),
	}
	args = append(append(args, l.perTunnel()...), l.metricsFlag(xdsServerMetrics(i))...)
	if l.options.AccessLog != "" {
		args = append(args, "--access-log="+l.options.AccessLog)
	}
	if l.options.Pages {
		args = append(args, "--page-listen="+PageAddress(i))
	}
	if l.options.ReplicaAddresses {
		args = append(args, "--replica-address="+netns.HostPort(netns.ReplicaName("{i}", l.Network.PublicName),
			netns.PublicPort))
	}
	l.XDSServers[i], err = l.startManaged(ctx, managed{
		name: name, program: "xds-server", account: xdsServerAccount,
		health: xdsServerHealth(i), args: append(args, l.options.XDSServerFlags...),
	})
	return err
}

// xdsServer returns the name of one xds-server, of its log and of its folder.
func xdsServer(i int) string {
	if i == 0 {
		return "xds-server"
	}
	return "xds-server-" + strconv.Itoa(i)
}

func xdsServerHealth(i int) string { return netns.HostPort("127.0.0.1", 8083+i) }

// managed is a program that accesses the management cluster with a ServiceAccount's permissions.
type managed struct {
	name, program, account, health string
	args                           []string
}

// startManaged starts a program, and waits until it reports that it is ready.
func (l *Lab) startManaged(ctx context.Context, m managed) (*proc.Service, error) {
	if err := os.MkdirAll(l.File(m.name), 0o700); err != nil {
		return nil, fmt.Errorf("making a folder for %s: %w", m.name, err)
	}
	kubeconfig, err := l.AccountKubeconfig(ctx, m.account)
	if err := kube.WriteKubeconfig(l.File(m.name, "kubeconfig"), kubeconfig, err); err != nil {
		return nil, err
	}
	program := l.Parts.OwnPath(m.program)
	args, err := l.known(ctx, m.name, program,
		append([]string{"--kubeconfig=" + l.File(m.name, "kubeconfig"), "--health-listen=" + m.health, l.logLevel()},
			m.args...))
	if err != nil {
		return nil, err
	}
	service, err := l.supervise(proc.Spec{Name: m.name, Namespace: l.Network.Management, Program: program, Args: args})
	if err != nil {
		return nil, err
	}
	return service, service.WaitReady(ctx, proc.StartTimeout, ready(l.Network.Management, m.health))
}

// AccountKubeconfig returns a kubeconfig of the management cluster with the permissions of a ServiceAccount of the
// installation.
func (l *Lab) AccountKubeconfig(ctx context.Context, account string) ([]byte, error) {
	token, err := accountToken(ctx, l.Management, account, authenticationv1.TokenRequestSpec{})
	if err != nil {
		return nil, err
	}
	return kube.Kubeconfig("management", l.Management.URL(), l.Management.CA.CertPEM, clientcmdapi.AuthInfo{Token: token})
}

// tokenTime is how long tokens are valid. A kubelet would renew them after less than an hour; here nothing does.
const tokenTime = 48 * time.Hour

// accountToken requests a token of a ServiceAccount of the installation.
func accountToken(ctx context.Context, a *kube.APIServer, account string,
	spec authenticationv1.TokenRequestSpec,
) (string, error) {
	spec.ExpirationSeconds = ptr.To(int64(tokenTime / time.Second))
	request := &authenticationv1.TokenRequest{Spec: spec}
	serviceAccount := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: InstallationNamespace,
		Name:      account,
	}}
	if err := a.Client.SubResource("token").Create(ctx, serviceAccount, request); err != nil {
		return "", fmt.Errorf("asking for a token of %s: %w", account, err)
	}
	return request.Status.Token, nil
}

// waitSecret waits until a Secret has a key.
func (l *Lab) waitSecret(ctx context.Context, name types.NamespacedName, key string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := proc.Wait(ctx, proc.StartTimeout, func(ctx context.Context) error {
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

// ready returns a condition that holds when one of our programs reports that it is ready.
func ready(namespace *netns.Namespace, health string) func(context.Context) error {
	probe := &http.Client{Transport: &http.Transport{DialContext: namespace.DialContext, DisableKeepAlives: true}}
	return proc.Answers200(probe, "http://"+health+"/readyz")
}

// logLevel returns the flag of all our programs.
func (l *Lab) logLevel() string { return "--log-level=" + cmp.Or(l.options.LogLevel, "debug") }

func user(account string) string {
	return "system:serviceaccount:" + InstallationNamespace + ":" + account
}

// ControllerReady returns nil if the controller reports that it is ready.
func (l *Lab) ControllerReady(ctx context.Context) error {
	return ready(l.Network.Management, controllerHealth)(ctx)
}

// XDSServerReady returns nil if every xds-server reports that it is ready.
func (l *Lab) XDSServerReady(ctx context.Context) error {
	for i := range l.XDSServers {
		if err := ready(l.Network.Management, xdsServerHealth(i))(ctx); err != nil {
			return err
		}
	}
	return nil
}
