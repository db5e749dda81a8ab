package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/pkg/diagnose/check"
	"github.com/fairlead/fairlead/pkg/diagnose/explain"
)

// The names of the tests of a management cluster.
const (
	TestVersion     check.ID = "kubernetes"
	TestClusterAPI  check.ID = "cluster-api"
	TestPermissions check.ID = "permissions"
)

const (
	objectTime = 15 * time.Second
	// oldestKubernetes and contract are those of docs/install.md.
	oldestKubernetes = "1.31.0"
	contract         = "cluster.x-k8s.io/v1beta2"
	// maxSkew is a difference of clocks that certificates tolerate: they are valid from some minutes before their issue.
	maxSkew = 30 * time.Second
	// largeName makes a request and its answer larger than several packets.
	largeName = 32 << 10
	// maxAnswer bounds an answer, which repeats largeName.
	maxAnswer = 1 << 20
)

// Permission is a permission that the installer needs.
type Permission struct {
	Group, Resource string
	Namespaced      bool // in the namespace of the installation
}

// Permissions lists the kinds of objects that the manifests and the chart contain. Their installer creates and patches
// them.
func Permissions() []Permission {
	return []Permission{
		{"", "namespaces", false},
		{"apiextensions.k8s.io", "customresourcedefinitions", false},
		{"rbac.authorization.k8s.io", "clusterroles", false},
		{"rbac.authorization.k8s.io", "clusterrolebindings", false},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", false},
		{"admissionregistration.k8s.io", "validatingadmissionpolicybindings", false},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", false},
		{"", "configmaps", true},
		{"", "secrets", true}, // the releases of Helm
		{"", "serviceaccounts", true},
		{"", "services", true},
		{"apps", "deployments", true},
		{"apps", "statefulsets", true},
		{"networking.k8s.io", "networkpolicies", true},
		{"policy", "poddisruptionbudgets", true},
		{"rbac.authorization.k8s.io", "roles", true},
		{"rbac.authorization.k8s.io", "rolebindings", true},
	}
}

// Management is a management cluster.
type Management struct {
	Config    *rest.Config
	Namespace string // of the installation
	Now       func() time.Time
}

// Test tests a management cluster with the permissions of the user who will install.
func (m *Management) Test(ctx context.Context) []check.Result {
	clients, err := kubernetes.NewForConfig(m.Config)
	if err != nil {
		return []check.Result{{
			ID: TestVersion, Title: "apiserver", Status: check.Broken, Detail: explain.Text(err),
			Cause: "the kubeconfig cannot be used", Cure: "correct --kubeconfig or --context",
		}}
	}
	first := check.Measure(ctx, TestVersion, "version of Kubernetes", objectTime, func(context.Context) check.Outcome {
		return kubernetesVersion(clients)
	})
	if first.Status == check.Broken {
		return []check.Result{first}
	}
	return []check.Result{
		first,
		check.Measure(ctx, TestClusterAPI, "Cluster API", objectTime, func(context.Context) check.Outcome {
			return clusterAPI(clients)
		}),
		check.Measure(ctx, TestPermissions, "your permissions", objectTime, func(ctx context.Context) check.Outcome {
			return m.permissions(ctx, clients)
		}),
		check.Measure(ctx, TestClock, "clock of this machine", objectTime, m.clock),
	}
}

// unreadable is the outcome if the apiserver does not answer.
func unreadable(what string, err error) check.Outcome {
	return check.Outcome{
		Status: check.Broken, Detail: what + ": " + explain.Text(err),
		Cause: "the apiserver of the management cluster does not answer, or denies the user",
		Cure:  "check --kubeconfig and --context with kubectl version",
	}
}

func kubernetesVersion(clients kubernetes.Interface) check.Outcome {
	info, err := clients.Discovery().ServerVersion()
	if err != nil {
		return unreadable("reading the version of the apiserver", err)
	}
	found, err := version.ParseGeneric(info.GitVersion)
	if err == nil && found.LessThan(version.MustParseGeneric(oldestKubernetes)) {
		return check.Outcome{
			Status: check.Broken, Detail: "the management cluster has " + info.GitVersion,
			Cause: "the version is older than " + oldestKubernetes, Cure: "upgrade the management cluster first",
		}
	}
	return passed("%s", info.GitVersion)
}

func clusterAPI(clients kubernetes.Interface) check.Outcome {
	list, err := clients.Discovery().ServerResourcesForGroupVersion(contract)
	isCluster := func(r metav1.APIResource) bool { return r.Name == "clusters" }
	if err != nil || !slices.ContainsFunc(list.APIResources, isCluster) {
		o := check.Outcome{
			Status: check.Broken, Detail: "the management cluster does not serve " + contract,
			Cause: "Cluster API is not installed, or older than 1.12", Cure: "install or upgrade it with clusterctl",
		}
		if err != nil {
			o.Detail += ": " + explain.Text(err)
		}
		return o
	}
	return passed("%s is served", contract)
}

// permissions asks the apiserver what the user may do. Without the verbs escalate and bind, an installation may succeed
// nevertheless: RBAC also permits roles with no other permissions than the user's own.
func (m *Management) permissions(ctx context.Context, clients kubernetes.Interface) check.Outcome {
	denied, err := m.denied(ctx, clients, Permissions(), "create", "patch")
	if err != nil {
		return unreadable("asking for permissions", err)
	}
	if len(denied) > 0 {
		return check.Outcome{
			Status: check.Broken, Detail: "you may not " + strings.Join(denied, ", "),
			Cause: "the user of the kubeconfig lacks permissions that the installation needs",
			Cure:  "install as a user with the ClusterRole cluster-admin",
		}
	}
	if denied, err = m.denied(ctx, clients, roles(), "escalate", "bind"); err != nil {
		return unreadable("asking for permissions", err)
	}
	if len(denied) > 0 {
		return check.Outcome{
			Status: check.Warning, Detail: "you may not " + strings.Join(denied, ", "),
			Cause: "RBAC lets you create and bind only roles whose permissions you have yourself, and those of the " +
				"installation may have more",
			Cure: "install as a user with the ClusterRole cluster-admin, or with the verbs escalate and bind on clusterroles " +
				"and roles",
		}
	}
	return passed(
		"you may create and patch all %d kinds of objects of an installation, and roles with any permissions",
		len(Permissions()),
	)
}

// roles returns the kinds that grant permissions.
func roles() []Permission {
	return slices.DeleteFunc(Permissions(), func(p Permission) bool { return !strings.HasSuffix(p.Resource, "roles") })
}

// denied returns which of some verbs the user may not use, with their kinds.
func (m *Management) denied(
	ctx context.Context, clients kubernetes.Interface, kinds []Permission, verbs ...string,
) (denied []string, err error) {
	for _, p := range kinds {
		for _, verb := range verbs {
			attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: p.Group, Resource: p.Resource}
			if p.Namespaced {
				attributes.Namespace = m.Namespace
			}
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
			}
			answer, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				return nil, err
			}
			if !answer.Status.Allowed {
				denied = append(denied, verb+" "+strings.TrimSuffix(p.Resource+"."+p.Group, "."))
			}
		}
	}
	return denied, nil
}

// clock compares the clocks, and sends and receives more than fits into one packet.
func (m *Management) clock(ctx context.Context) check.Outcome {
	began := m.Now()
	answered, err := m.sendLarge(ctx)
	if err != nil {
		return unreadable("sending a large request", err)
	}
	skew := answered.Sub(began)
	// The header has whole seconds, and the request takes time.
	if tolerated := maxSkew + m.Now().Sub(began) + time.Second; skew > tolerated || skew < -tolerated {
		return check.Outcome{
			Status: check.Broken,
			Detail: fmt.Sprintf("the apiserver shows %s, and this machine %s", utc(answered), utc(began)),
			Cause:  "one of the clocks is wrong: certificates are then not valid yet, or expired",
			Cure:   "synchronise the clocks of this machine and of the control-plane machines, such as with chrony",
		}
	}
	return passed("it agrees with that of the apiserver; requests and answers of %d bytes pass", largeName)
}

// sendLarge sends a large request that changes nothing, and returns the time at the apiserver.
func (m *Management) sendLarge(ctx context.Context) (time.Time, error) {
	client, err := rest.HTTPClientFor(m.Config)
	if err != nil {
		return time.Time{}, err
	}
	review := &authorizationv1.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "get", Resource: "configmaps", Name: strings.Repeat("x", largeName),
		}},
	}
	body, err := json.Marshal(review)
	if err != nil {
		return time.Time{}, err
	}
	url := strings.TrimSuffix(m.Config.Host, "/") + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return time.Time{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer)); err != nil {
		return time.Time{}, err
	}
	if response.StatusCode != http.StatusCreated {
		return time.Time{}, fmt.Errorf("the answer is %d", response.StatusCode)
	}
	return http.ParseTime(response.Header.Get("Date"))
}
