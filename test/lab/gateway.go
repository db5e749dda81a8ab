package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/lab/netns"
)

// startGateway starts a gateway as soon as the controller has created its credentials, and waits until it is ready.
func (l *Lab) startGateway(ctx context.Context, i int) error {
	spec, err := l.gatewaySpec(ctx, i)
	if err != nil {
		return err
	}
	l.Gateways[i], err = l.startAgent(ctx, spec)
	return err
}

// gatewaySpec returns the spec of a gateway, after it has written the gateway's files.
func (l *Lab) gatewaySpec(ctx context.Context, i int) (agentSpec, error) {
	name := netns.GatewayReplica(i)
	dir := l.File(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return agentSpec{}, fmt.Errorf("making a folder for %s: %w", name, err)
	}
	secret, err := l.waitSecret(ctx, types.NamespacedName{
		Namespace: InstallationNamespace,
		Name:      v1alpha1.GatewaySecretName,
	}, v1alpha1.BootstrapTokenKey)
	if err != nil {
		return agentSpec{}, err
	}
	credential := "--token-file=" + filepath.Join(dir, "token")
	token := string(secret.Data[v1alpha1.BootstrapTokenKey])
	if l.options.GatewayPod {
		credential = "--service-account-token-file=" + filepath.Join(dir, "token")
		if token, err = l.gatewayPodToken(ctx, name); err != nil {
			return agentSpec{}, err
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "token"), []byte(token), 0o600),
		os.WriteFile(filepath.Join(dir, "ca.crt"), secret.Data[v1alpha1.BootstrapCAKey], 0o644)); err != nil {
		return agentSpec{}, fmt.Errorf("writing the credentials of %s: %w", name, err)
	}
	const health = "127.0.0.1:8080"
	spec := agentSpec{
		name: name, program: l.Parts.OwnPath("gateway-agent"), namespace: l.Network.Gateways[i],
		dir: filepath.Join(dir, "state"), health: health,
		args: []string{
			"--name=" + name, "--xds-server=" + netns.HostPort(netns.XDSServerName, netns.XDSPort),
			"--tunnel-domain=" + l.Domain,
			"--ca-file=" + filepath.Join(dir, "ca.crt"), credential,
			"--public-listen=" + l.listen(l.Network.PublicAddress(i), netns.PublicPort),
			"--apiserver-listen=" + l.listen(l.Network.InsideAddress(i), netns.APIServerPort),
			"--connect-listen=" + l.listen(l.Network.InsideAddress(i), netns.ConnectPort),
			"--workers=" + strconv.Itoa(l.options.GatewayWorkers),
		},
	}
	spec.args = append(spec.args, l.perTunnel()...)
	if l.options.WithoutNetAdmin {
		spec.args = append(spec.args, "--net-admin=false")
	}
	if l.options.BalancerNetwork.IsValid() {
		spec.args = append(spec.args, "--proxy-protocol-from="+l.options.BalancerNetwork.String())
	}
	return spec, nil
}

// perTunnel returns the flag for GatewaysPerTunnel of gateways, xds-servers and controllers. Gateways behind load
// balancers with PROXY headers cannot forward.
func (l *Lab) perTunnel() []string {
	n := l.options.GatewaysPerTunnel
	if n == 0 && !l.options.BalancerNetwork.IsValid() {
		return nil
	}
	return []string{"--gateways-per-tunnel=" + strconv.Itoa(n)}
}

// listen returns where a program listens: at one of its addresses, or at all of them if it has two families.
func (l *Lab) listen(address netip.Addr, port uint16) string {
	if l.options.Family == netns.DualStack {
		return netns.HostPort("", int(port))
	}
	return netip.AddrPortFrom(address, port).String()
}

// gatewayPodToken creates the Pod of a gateway from the installation's own manifest, and returns the token that a
// kubelet would mount into it.
func (l *Lab) gatewayPodToken(ctx context.Context, name string) (string, error) {
	set, err := l.gatewayManifest()
	if err != nil {
		return "", err
	}
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name = set.Namespace, name
	if err := l.Management.Client.Create(ctx, pod); err != nil {
		return "", fmt.Errorf("creating the gateway's Pod: %w", err)
	}
	return accountToken(ctx, l.Management, gatewayAccount, authenticationv1.TokenRequestSpec{
		Audiences:      []string{"fairlead.dev"},
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	})
}
