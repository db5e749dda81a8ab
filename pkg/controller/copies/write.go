package copies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/pkg/controller/objects"
	"github.com/fairlead/fairlead/pkg/controller/records"
	"github.com/fairlead/fairlead/pkg/kubeconfig"
)

// copyRequest is a requested copy with the field that requests it.
type copyRequest struct {
	*v1alpha1.KubeconfigCopy
	field string
}

func (c copyRequest) refuse(field, format string, args ...any) error {
	return fmt.Errorf("%s.%s: %w", c.field, field, fmt.Errorf(format, args...))
}

// reservedSuffixes are the suffixes of Secrets that control-plane providers and Fairlead create. These fail if such a
// Secret has another owner.
var reservedSuffixes = []string{
	kubeconfig.Suffix, "-ca", "-cca", "-etcd", "-proxy", "-sa", "-apiserver-etcd-client", v1alpha1.BootstrapSecretSuffix,
	v1alpha1.BootReportSecretSuffix, v1alpha1.EdgeResourcesSecretSuffix,
}

// check returns what is wrong with a request by itself.
func (c copyRequest) check(key client.ObjectKey, installation string) error {
	if problems := validation.IsDNS1123Subdomain(key.Name); len(problems) > 0 {
		return c.refuse("name", "%q: %s", key.Name, problems[0])
	}
	if i := slices.IndexFunc(reservedSuffixes, func(s string) bool { return strings.HasSuffix(key.Name, s) }); i >= 0 {
		return c.refuse(
			"name", "%q: a Cluster's own Secrets end in %q: choose a name that does not", key.Name, reservedSuffixes[i],
		)
	}
	if key.Namespace == installation {
		return c.refuse(
			"namespace", "%q: this namespace has the installation's own Secrets: choose another namespace", key.Namespace,
		)
	}
	if c.ClientCertificate == nil {
		return nil
	}
	for _, name := range append([]string{c.ClientCertificate.CommonName}, c.ClientCertificate.Groups...) {
		if prefix := reservedPrefix(name); prefix != "" {
			return c.refuse(
				"clientCertificate",
				"%q: names that begin with %q are reserved for Kubernetes, and no certificate can "+
					"be revoked:"+
					" use a group of your own and bind it to a role in the workload cluster",
				name,
				prefix,
			)
		}
	}
	return nil
}

// reservedPrefix returns the reserved prefix of a Kubernetes user or group. RBAC does not restrict some of them, such
// as system:masters, and kubeadm binds others.
func reservedPrefix(name string) string {
	for _, prefix := range []string{"system:", "kubeadm:"} {
		if strings.HasPrefix(name, prefix) {
			return prefix
		}
	}
	return ""
}

// writeOne writes one copy and returns its result. Its error is one of the apiserver.
func (r *Reconciler) writeOne(ctx context.Context, o objects.Group, request copyRequest, result *copyResult) error {
	if result.problem = request.check(result.key, r.Config.Namespace); result.problem != nil {
		return nil
	}
	accepted, err := r.accepted(ctx, o.Key.Namespace, result.key.Namespace)
	if err != nil {
		return err
	}
	if !accepted {
		result.problem = request.refuse("namespace", "%q: it accepts no kubeconfigs from namespace %s: put the annotation "+
			"%s: %s on the Namespace",
			result.key.Namespace, o.Key.Namespace, v1alpha1.AcceptKubeconfigsAnnotation, o.Key.Namespace)
		return nil
	}
	result.stays = true
	entry, err := r.entry(o, request)
	if err != nil {
		result.problem = err
		return nil
	}
	have, err := objects.Get(ctx, r.Live, result.key, &corev1.Secret{}) // no cache has its data
	if err != nil {
		return objects.Wrap("reading copy of a kubeconfig", err)
	}
	if have != nil && !madeFor(have, o.Tunnel) {
		result.problem = request.refuse(
			"name", "%q: the Secret %s exists and does not belong to this Tunnel: delete it, or choose another name",
			request.Name, result.key,
		)
		return nil
	}
	user, err := r.user(ctx, o, request, have, result)
	if err != nil || user == nil {
		return err
	}
	data, err := copyOf(o.Key.Name, entry, user)
	if err != nil {
		return err
	}
	if err := r.store(ctx, o.Tunnel, have, result, data); err != nil {
		return err
	}
	if result.problem == nil {
		result.problem = r.unverified(o, request, entry)
	}
	return nil
}

// unverified returns an error if every observed serving certificate lacks the name that clients of a copy verify. It
// returns nil if one has it, or if no edge has observed a certificate yet.
func (r *Reconciler) unverified(o objects.Group, request copyRequest, entry *clientcmdapi.Cluster) error {
	name := entry.TLSServerName
	if name == "" {
		name = kubeconfig.Host(entry.Server)
	}
	if entry.InsecureSkipTLSVerify || kubeconfig.Covered(records.CertificateNames(o.Tunnel.Status.Edges, r.Now()), name) {
		return nil
	}
	return request.refuse(
		"mode",
		"%w: the serving certificate that the edges observe does not contain the name %s: add it to the certificate "+
			"(certSANs), or "+
			"choose mode connect",
		errUnverified,
		name,
	)
}

// accepted reports whether a namespace accepts kubeconfigs of Tunnels in other namespaces.
func (r *Reconciler) accepted(ctx context.Context, from, to string) (bool, error) {
	if from == to {
		return true, nil
	}
	namespace := namespaceMetadata()
	if namespace, err := objects.Get(ctx, r.Client, client.ObjectKey{Name: to}, namespace); err != nil ||
		namespace == nil {
		return false, objects.Wrap("reading Namespace", err)
	}
	for name := range strings.SplitSeq(namespace.Annotations[v1alpha1.AcceptKubeconfigsAnnotation], ",") {
		if name = strings.TrimSpace(name); name == from || name == "*" {
			return true, nil
		}
	}
	return false, nil
}

// entry returns the entry of a copy: possibly with another endpoint than the Cluster's own kubeconfig, but with its CA.
func (r *Reconciler) entry(o objects.Group, request copyRequest) (*clientcmdapi.Cluster, error) {
	if o.Kubeconfig == nil || o.Tunnel.Status.Kubeconfig.Mode == "" {
		return nil, fmt.Errorf("%w for the Cluster's own kubeconfig", errWaiting)
	}
	_, own, err := kubeconfig.Load(o.Kubeconfig, o.Key.Name)
	if err != nil {
		return nil, err
	}
	mode := request.Mode
	if mode == "" {
		mode = o.Tunnel.Status.Kubeconfig.Mode
	}
	endpoint, ok := kubeconfig.EndpointTo(mode, o.Tunnel, o.Kubeconfig, r.Config.Gateways())
	switch {
	case ok:
	case request.Mode != "":
		return nil, request.refuse("mode", "%q: the Tunnel uses no gateway: remove it", request.Mode)
	default:
		// A private network of the user, with the endpoint of the Cluster's own kubeconfig.
		endpoint = kubeconfig.Endpoint{Server: own.Server, TLSServerName: own.TLSServerName, ProxyURL: own.ProxyURL}
		if kubeconfig.WithoutCredentials(endpoint.ProxyURL) != endpoint.ProxyURL {
			return nil, fmt.Errorf(
				"%s: the proxy of the Cluster's own kubeconfig needs credentials, which a copy must not contain: make the "+
					"kubeconfig "+
					"by hand",
				request.field,
			)
		}
	}
	return &clientcmdapi.Cluster{
		Server: endpoint.Server, TLSServerName: endpoint.TLSServerName, ProxyURL: endpoint.ProxyURL,
		CertificateAuthorityData: own.CertificateAuthorityData, InsecureSkipTLSVerify: own.InsecureSkipTLSVerify,
	}, nil
}

// user returns the user of a copy, or nil and sets the reason in result.
func (r *Reconciler) user(
	ctx context.Context, o objects.Group, request copyRequest, have *corev1.Secret, result *copyResult,
) (*clientcmdapi.AuthInfo, error) {
	if request.Exec != nil {
		return execUser(request.Exec), nil
	}
	ca, problem, err := r.userCA(ctx, o.Key)
	if err != nil {
		return nil, err
	}
	if problem == nil {
		var user *clientcmdapi.AuthInfo
		if user, problem = r.certified(ca, request.ClientCertificate, have, result); problem == nil {
			return user, nil
		}
	}
	result.problem = fmt.Errorf("%s.clientCertificate: %w", request.field, problem)
	if have != nil {
		result.notAfter, _ = notAfterOf(have)
	}
	return nil, nil
}

// execUser returns a user that authenticates with a plugin.
func execUser(spec *v1alpha1.ExecAudience) *clientcmdapi.AuthInfo {
	plugin := &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: spec.Command, Args: spec.Args, InstallHint: spec.InstallHint,
		InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode, ProvideClusterInfo: true,
	}
	for _, variable := range spec.Env {
		plugin.Env = append(plugin.Env, clientcmdapi.ExecEnvVar{Name: variable.Name, Value: variable.Value})
	}
	return &clientcmdapi.AuthInfo{Exec: plugin}
}

// copyUser is the key of the one user in a copy. It does not identify a person.
const copyUser = "user"

// copyOf returns a kubeconfig with one entry of each kind.
func copyOf(cluster string, entry *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster], config.AuthInfos[copyUser] = entry, user
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: copyUser}
	config.CurrentContext = cluster
	data, err := clientcmd.Write(*config)
	return data, objects.Wrap("writing copy of a kubeconfig", err)
}

// store writes the Secret of a copy, if it differs.
func (r *Reconciler) store(
	ctx context.Context, tunnel *v1alpha1.Tunnel, have *corev1.Secret, result *copyResult, data []byte,
) error {
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: result.key.Namespace, Name: result.key.Name}, Type: corev1.SecretTypeOpaque,
	}
	if have != nil {
		want = have.DeepCopy()
	}
	metav1.SetMetaDataLabel(&want.ObjectMeta, v1alpha1.CopyLabel, tunnel.ClaimedID())
	metav1.SetMetaDataAnnotation(
		&want.ObjectMeta, v1alpha1.RequestTunnelAnnotation, client.ObjectKeyFromObject(tunnel).String(),
	)
	if tunnel.Namespace == result.key.Namespace { // an owner reference cannot cross namespaces
		want.OwnerReferences = []metav1.OwnerReference{objects.OwnerRef(v1alpha1.GroupVersion.WithKind("Tunnel"), tunnel)}
	}
	want.Data = map[string][]byte{kubeconfig.Key: data}
	var err error
	switch {
	case have == nil:
		err = r.Client.Create(ctx, want)
	case equality.Semantic.DeepEqual(want, have):
		return nil
	default:
		err = r.Client.Patch(ctx, want, objects.LockedPatch(have))
	}
	if err != nil { // a new certificate in want is discarded
		result.notAfter, _ = notAfterOf(have)
		result.renewAt = time.Time{}
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		result.problem = fmt.Errorf("namespace %s is being deleted", result.key.Namespace)
		return nil
	case apierrors.IsInvalid(err):
		// the apiserver's message may quote the content of the Secret
		result.problem = fmt.Errorf("the apiserver rejects Secret %s", result.key)
		return nil
	case objects.Denied(err), apierrors.IsNotFound(err):
		result.problem = fmt.Errorf(
			"the apiserver rejects writing Secret %s (%s): because of a quota or an admission policy, or because the "+
				"namespace is gone",
			result.key,
			apierrors.ReasonForError(err),
		)
		return nil
	case err != nil:
		return objects.Wrap("writing copy of a kubeconfig", err)
	}
	r.Log.Info(
		"copy of a kubeconfig written", "secret", result.key.String(), "tunnel", tunnel.ClaimedID(), "not_after",
		result.notAfter,
	)
	return nil
}
