package csr_test

import (
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/fairlead/fairlead/pkg/enrol/csr"
	enrolserver "github.com/fairlead/fairlead/pkg/enrol/server"
)

// newPod creates a Pod and, if it does not exist, its ServiceAccount.
func newPod(t *testing.T, c kubernetes.Interface, namespace, account, pod string) *corev1.Pod {
	t.Helper()
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	_, err := c.CoreV1().ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{})
	if err != nil && !strings.Contains(err.Error(), "already exists") {
		t.Fatal(err)
	}
	made, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod},
		Spec:       corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// tokenOf creates a ServiceAccount token, bound to pod unless pod is nil.
func tokenOf(t *testing.T, c kubernetes.Interface, namespace, account string, pod *corev1.Pod, audience string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{
			APIVersion: "v1",
			Kind:       "Pod",
			Name:       pod.Name,
			UID:        pod.UID,
		}
	}
	made, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

func TestReviewGateway(t *testing.T) {
	c := apiserver(t)
	ns, err := c.CoreV1().
		Namespaces().
		Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	at := ns.Name
	mine, other := newPod(t, c, at, "gateway", "gateway-0"), newPod(t, c, at, "gateway", "gateway-1")
	stranger := newPod(t, c, at, "stranger", "stranger")
	tests := map[string]struct {
		token string
		want  string // substring of the denial; empty: accepted
	}{
		"of the Pod itself": {token: tokenOf(t, c, at, "gateway", mine, csr.Audience)},
		"of another gateway's Pod": {
			token: tokenOf(t, c, at, "gateway", other, csr.Audience),
			want:  "does not belong to Pod gateway-0",
		},
		"bound to no Pod": {
			token: tokenOf(t, c, at, "gateway", nil, csr.Audience),
			want:  "does not belong to Pod gateway-0",
		},
		"of another ServiceAccount": {
			token: tokenOf(t, c, at, "stranger", stranger, csr.Audience),
			want:  "not to the gateways",
		},
		"for another audience": {
			token: tokenOf(t, c, at, "gateway", mine, "https://kubernetes.default.svc"),
			want:  "not valid for audience",
		},
		"that is no token": {token: "x", want: "not valid for audience"},
		"with a signature that was broken": {
			token: tokenOf(t, c, at, "gateway", mine, csr.Audience) + "x",
			want:  "not valid for audience",
		},
	}
	reviews := csr.Reviews{Client: c, User: "system:serviceaccount:" + at + ":gateway"}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := reviews.ReviewGateway(t.Context(), tc.token, "gateway-0")
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, enrolserver.ErrDenied) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a denial with %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), tc.token) && len(tc.token) > 1 {
				t.Error("the error holds the token")
			}
		})
	}
}
