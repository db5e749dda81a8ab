package controller

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead/fairlead/internal/traces"
	"github.com/fairlead/fairlead/internal/tracetest"
)

// A webhook of somebody else's may say no in words of the object, and the object may be a Secret.
func TestWhatAnApiserverSaysIsNotTraced(t *testing.T) {
	c := tracetest.Start(t)
	stop := traceTo(t, c)
	for _, err := range []error{
		&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "admission denied: value c2VjcmV0LWJ5dGVz"}},
		errors.New("dialling 192.0.2.1:6443"),
	} {
		_, span := traces.Begin(t.Context(), "write kubeconfig")
		endSpan(span, fmt.Errorf("writing: %w", err))
	}
	stop()
	if c.Has("c2VjcmV0LWJ5dGVz") || !c.Has("the apiserver answered Forbidden") || !c.Has("dialling 192.0.2.1:6443") {
		t.Errorf("got %v", c.Find("write kubeconfig"))
	}
}
