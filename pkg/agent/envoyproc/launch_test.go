package envoyproc

import "testing"

// TestAnEnvoyWithOtherRecordsIsNotAdopted: an agent takes over an Envoy only if it would start it in the same way. An
// Envoy behind load balancers that name sources has recorded other addresses of its tunnels.
func TestAnEnvoyWithOtherRecordsIsNotAdopted(t *testing.T) {
	prepared := func(proxied bool) string {
		l, err := prepare(Config{Dir: t.TempDir(), Program: "true", Gateway: true, Concurrency: 1, Proxied: proxied})
		if err != nil {
			t.Fatal(err)
		}
		return l.config
	}
	if before, same := prepared(true), prepared(true); before != same {
		t.Errorf("%s and %s are starts of equal configurations", before, same)
	}
	if with, without := prepared(true), prepared(false); with == without {
		t.Errorf("both configurations have %s", with)
	}
}
