package redact_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/redact"
)

func TestValue(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"data of a Secret": {`{"kind":"Secret","data":{"a":"aHVudGVyMg=="},"stringData":{"b":"hunter2"},"type":"Opaque"}`, `{"kind":"Secret","data":{"a":"[removed]"},"stringData":{"b":"[removed]"},"type":"Opaque"}`},
		"data of something else": {
			`{"kind":"ConfigMap","data":{"a":"b","gateway-token-sha256":"c"}}`,
			`{"kind":"ConfigMap","data":{"a":"b","gateway-token-sha256":"[removed]"}}`,
		},
		"annotations":           {`{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x","fairlead.dev/original-server":"https://a","example.com/a":"b","fairlead.dev/token-sha256":"c"}}`, `{"annotations":{"fairlead.dev/original-server":"https://a","example.com/a":"[removed]","fairlead.dev/token-sha256":"[removed]"}}`},
		"an environment":        {`{"env":[{"name":"A","value":"hunter2"},{"name":"B","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}`, `{"env":[{"name":"A","value":"[removed]"},{"name":"B","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}`},
		"names of secrets stay": {`{"secretName":"a","dataSecretName":"b","credentialsSecret":"c","secretRef":{"name":"d"},"tokens":[{"sha256":"e","uses":1}]}`, `{"secretName":"a","dataSecretName":"b","credentialsSecret":"c","secretRef":{"name":"d"},"tokens":[{"sha256":"[removed]","uses":1}]}`},
		"lists, numbers and truth": {
			`{"passwords":["a","b"],"token":3,"automountServiceAccountToken":false,"secret":""}`,
			`{"passwords":["[removed]","[removed]"],"token":3,"automountServiceAccountToken":false,"secret":""}`,
		},
		"arguments": {
			`["--client-secret","hunter2","--color","red","--token=hunter2"]`,
			`["--client-secret","[removed]","--color","red","--token=[removed]"]`,
		},
		"texts":          {`{"message":"to https://a:b@c failed"}`, `{"message":"to https://[removed]@c failed"}`},
		"managed fields": {`{"metadata":{"managedFields":[{"x":"y"}],"name":"z"}}`, `{"metadata":{"name":"z"}}`},
		"a kubeconfig": {
			`{"kubeconfig":"users: []","spec":{"kubeconfig":{"mode":"sni"}}}`,
			`{"kubeconfig":"[removed]","spec":{"kubeconfig":{"mode":"sni"}}}`,
		},
	} {
		var in, want any
		if err := json.Unmarshal([]byte(tc.in), &in); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
			t.Fatal(err)
		}
		got := redact.Value(in)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if diff := cmp.Diff(want, redact.Value(got)); diff != "" {
			t.Errorf("%s, once more: %s", name, diff)
		}
	}
}
