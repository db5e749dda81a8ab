package kubeconfig

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/api/v1alpha1"
)

// kubeadm are names in every serving certificate of kubeadm.
var kubeadm = []string{"cp-0", "kubernetes", "kubernetes.default", "10.96.0.1", "192.0.2.77"}

func with(names ...string) []string { return append(append([]string{}, kubeadm...), names...) }

func TestChoose(t *testing.T) {
	const apiName, extra = "api.eks.example.org", "extra.example.org"
	sniBefore := v1alpha1.KubeconfigStatus{Mode: v1alpha1.KubeconfigModeSNI, Server: byAddress, TLSServerName: hostname}
	endpointBefore := v1alpha1.KubeconfigStatus{
		Mode:          v1alpha1.KubeconfigModeSNI,
		Server:        byAddress,
		TLSServerName: apiName,
		EndpointName:  apiName,
	}
	sni, connect := v1alpha1.KubeconfigModeSNI, v1alpha1.KubeconfigModeConnect
	// Each question is about a tunnel that has only a hostname.
	tests := map[string]struct {
		q        Evidence
		want     Choice // without its message
		contains string // part of the message
	}{
		"a mode that the user names": {
			q:    Evidence{Mode: sni, Certificates: [][]string{kubeadm}},
			want: Choice{Mode: sni, Name: hostname, Reason: "Configured"},
		},
		"the other one": {
			q:    Evidence{Mode: connect, Certificates: [][]string{with(hostname)}},
			want: Choice{Mode: connect, Name: hostname, Reason: "Configured"},
		},
		"no edge yet": {
			want:     Choice{Mode: connect, Name: hostname, Reason: "NoEvidence"},
			contains: "no edge has observed",
		},
		"no edge now, sni before": {q: Evidence{Before: sniBefore}, want: Choice{Mode: sni, Name: hostname}},
		"no edge now, the endpoint's name before": {
			q: Evidence{
				Before:         endpointBefore,
				Endpoint:       apiName,
				EndpointServed: true,
			}, want: Choice{Mode: sni, Name: apiName, EndpointName: apiName},
		},
		"no edge now, connect before": {
			q:    Evidence{Before: v1alpha1.KubeconfigStatus{Mode: connect}},
			want: Choice{Mode: connect, Name: hostname},
		},
		"no edge now, and the endpoint's name is being claimed": {
			q: Evidence{
				Before:   v1alpha1.KubeconfigStatus{Mode: connect, EndpointName: apiName},
				Endpoint: apiName,
			}, want: Choice{Mode: connect, Name: hostname, EndpointName: apiName},
		},
		"no edge now, and it is another's meanwhile": {
			q: Evidence{
				Before:         v1alpha1.KubeconfigStatus{Mode: connect, EndpointName: apiName},
				Endpoint:       apiName,
				EndpointHolder: "the Tunnel prod/other",
			},
			want: Choice{Mode: connect, Name: hostname},
		},
		"no edge now, and a name before that is not served any more": {
			q: Evidence{
				Before:   endpointBefore,
				Endpoint: "other.example.org",
			}, want: Choice{Mode: connect, Name: hostname, Reason: "NoEvidence"}, contains: "no edge observes",
		},
		"the certificate has the hostname": {
			q: Evidence{
				Certificates: [][]string{with(hostname)},
			}, want: Choice{Mode: sni, Name: hostname, Reason: "CertificateHasHostname"}, contains: "tunnel hostname " +
				hostname,
		},
		"by a wildcard": {
			q:    Evidence{Certificates: [][]string{with("*.prod.tunnels.example.com")}},
			want: Choice{Mode: sni, Name: hostname, Reason: "CertificateHasHostname"},
		},
		"in upper case": {
			q:    Evidence{Certificates: [][]string{with("C1.Prod.Tunnels.Example.Com")}},
			want: Choice{Mode: sni, Name: hostname, Reason: "CertificateHasHostname"},
		},
		"a wildcard of two names": {
			q:    Evidence{Certificates: [][]string{with("*.tunnels.example.com")}},
			want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"},
		},
		"the certificate has an extra name": {
			q: Evidence{
				Names:        []string{extra},
				Certificates: [][]string{with(extra)},
			}, want: Choice{Mode: sni, Name: extra, Reason: "CertificateHasHostname"}, contains: "extra name " + extra,
		},
		"the certificate has a name that is not served": {
			q: Evidence{
				Certificates: [][]string{with(extra)},
			}, want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"},
			contains: "it has cp-0, kubernetes,",
		},
		"only one of two apiservers has the hostname": {
			q: Evidence{
				Certificates: [][]string{with(hostname), kubeadm},
			}, want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"},
		},
		"a certificate that loses the hostname": {
			q: Evidence{
				Before:       sniBefore,
				Certificates: [][]string{kubeadm},
			}, want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"}, contains: "certSANs",
		},
		"a name in use stays while it is good": {
			q: Evidence{
				Before:         endpointBefore,
				Endpoint:       apiName,
				EndpointServed: true,
				Certificates:   [][]string{with(hostname, apiName)},
			},
			want: Choice{Mode: sni, Name: apiName, EndpointName: apiName, Reason: "CertificateHasEndpoint"},
		},
		"the endpoint's name is claimed first": {
			q: Evidence{Endpoint: apiName, Certificates: [][]string{with(apiName)}},
			want: Choice{
				Mode:         connect,
				Name:         hostname,
				EndpointName: apiName,
				Reason:       "CertificateLacksHostname",
			}, contains: "once it is served",
		},
		"and used once it is served": {
			q: Evidence{Endpoint: apiName, EndpointServed: true, Certificates: [][]string{with(apiName)}},
			want: Choice{
				Mode:         sni,
				Name:         apiName,
				EndpointName: apiName,
				Reason:       "CertificateHasEndpoint",
			}, contains: "which no other Cluster has",
		},
		"the endpoint's name is another's too": {
			q: Evidence{Endpoint: apiName, EndpointHolder: "the Tunnel prod/other", Certificates: [][]string{with(apiName)}},
			want: Choice{
				Mode:   connect,
				Name:   hostname,
				Reason: "CertificateLacksHostname",
			}, contains: "the Tunnel prod/other has that name too",
		},
		"the endpoint's name is an extra name": {
			q: Evidence{
				Names:          []string{apiName},
				Endpoint:       apiName,
				EndpointServed: true,
				Certificates:   [][]string{with(apiName)},
			},
			want: Choice{Mode: sni, Name: apiName, Reason: "CertificateHasHostname"},
		},
		"the endpoint is an address": {
			q:    Evidence{Endpoint: "192.0.2.77", Certificates: [][]string{kubeadm}},
			want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"},
		},
		"the endpoint is a name of one label": {
			q:    Evidence{Endpoint: "kubernetes", Certificates: [][]string{kubeadm}},
			want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"},
		},
		"certificates without a common name": {
			q: Evidence{
				Certificates: [][]string{{"a"}, {"b"}},
			}, want: Choice{Mode: connect, Name: hostname, Reason: "CertificateLacksHostname"}, contains: "no name in common",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.q.Hostname = hostname
			got := Choose(tc.q)
			if !strings.Contains(got.Message, tc.contains) ||
				(got.Reason != "" && !strings.HasPrefix(got.Message, string(got.Mode)+": ")) {
				t.Errorf("message %q, want %q in it", got.Message, tc.contains)
			}
			if got.Message = ""; got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
