package server

import (
	"crypto/x509"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
)

const (
	// maxInFlight bounds the concurrent requests of all callers, which may be anyone on the internet. maxInFlightEach
	// bounds the requests of one caller: an address, or the subject of a certificate.
	maxInFlight, maxInFlightEach = 512, 32
	// maxInFlightTunnel bounds the edges of one tunnel: it takes 16 hostile tunnels to use up all slots.
	maxInFlightTunnel = 32
	// maxKeys bounds the keys of each kind in memory: about 300 bytes per key.
	maxKeys = 16_384
	// busyTime is the retry delay while the server is busy: a signature takes far less.
	busyTime = time.Second
	// renewals is how many times a node may renew within the lifetime of a leaf, after renewalBurst. It is enough for
	// a node that retries all the time while the signer is unavailable.
	renewals, renewalBurst = 300, 30
	// minRenewal bounds the rate for leaves that live for seconds.
	minRenewal = 500 * time.Millisecond
	// tunnelEdges is how many edges of one tunnel may renew at that rate: as many as a Tunnel's status lists. Ten
	// times as many may renew at once, after an outage.
	tunnelEdges, tunnelBurst = 100, 1000
)

var (
	// rejectionRate limits rejected attempts of one address. Rejected agents retry after 10 s or more.
	rejectionRate = limit.Rate{Every: 3 * time.Second, Burst: 20}
	// tokenRate limits one token: a hundred machines that join together are done within half a minute.
	tokenRate = limit.Rate{Every: 250 * time.Millisecond, Burst: 64}
	// enrolRate limits all tokens of one tunnel. Each attempt creates a CertificateSigningRequest, which exists for an
	// hour, so that one tunnel has about 2,300 of them at most.
	enrolRate = limit.Rate{Every: 2 * time.Second, Burst: 512}
	// podRate limits one Pod: its agent repeats a request that received no answer, and retries a rejected one after 10 s.
	podRate = limit.Rate{Every: 10 * time.Second, Burst: 10}
	// podTokenRate limits the ServiceAccount tokens of edges that are verified, of one address. It is the rate of one
	// bootstrap token: the Pods of a workload cluster usually share an address. A verification takes about 0.1 ms, less
	// than the handshake before it.
	podTokenRate = limit.Rate{Every: 250 * time.Millisecond, Burst: 64}
	// gatewayRate limits the first leaves of one gateway.
	gatewayRate = limit.Rate{Every: 10 * time.Second, Burst: 10}
	// reviewRate and allReviewRate limit requests to the apiserver about ServiceAccount tokens, of one address and of
	// all, because any client in the network can cause them.
	reviewRate    = limit.Rate{Every: 2 * time.Second, Burst: 20}
	allReviewRate = limit.Rate{Every: 100 * time.Millisecond, Burst: 100}
	// logRate limits how often the same error of the same caller is logged.
	logRate = limit.Rate{Every: 10 * time.Minute, Burst: 1}
)

// limits are the rates and the slots of a Server's callers.
type limits struct {
	inFlight, tunnels                            *limit.Slots // by caller, and by tunnel id
	rejections, attempts, reviews, logged, boots *limit.Rates
	bootEnds, bootTokens                         *limit.Rates // logged ends of boots: by machine, and by token
}

func newLimits() *limits {
	return &limits{
		inFlight: limit.NewSlots(maxInFlight, maxInFlightEach), tunnels: limit.NewSlots(maxInFlight, maxInFlightTunnel),
		rejections: limit.NewRates(
			maxKeys,
		), attempts: limit.NewRates(maxKeys), reviews: limit.NewRates(maxKeys), logged: limit.NewRates(maxKeys),
		boots: limit.NewRates(maxKeys), bootEnds: limit.NewRates(maxKeys), bootTokens: limit.NewRates(maxKeys),
	}
}

// renewalRate is relative to the lifetime of the renewed leaf, so that leaves that live for seconds can be used.
func renewalRate(leaf *x509.Certificate) limit.Rate {
	life := leaf.NotAfter.Sub(leaf.NotBefore) - certs.ClockSkew // NotBefore is earlier by this
	return limit.Rate{Every: max(life/renewals, minRenewal), Burst: renewalBurst}
}

// review counts a token review, of one address and of all.
func (l *limits) review(address string) error {
	const text = "too many ServiceAccount tokens"
	if wait := l.reviews.Take(address, reviewRate); wait > 0 {
		return retry.Later(text, wait)
	}
	if wait := l.reviews.Take("all", allReviewRate); wait > 0 {
		return retry.Later(text, wait)
	}
	return nil
}

// podToken counts the verification of a ServiceAccount token of an edge of one address.
func (l *limits) podToken(address string) error {
	if wait := l.reviews.Take("pods "+address, podTokenRate); wait > 0 {
		return retry.Later("too many ServiceAccount tokens of Pods", wait)
	}
	return nil
}

// ofTunnel counts an edge's attempt for its tunnel, and returns a function that releases its slot.
func (l *limits) ofTunnel(a attempt) (done func(), err error) {
	id := a.Subject.ID
	if id == "" {
		return func() {}, nil
	}
	key, by := "enrol "+id, enrolRate
	switch { // separate, so that a stolen token prevents no edge from renewing, and no Pod from enrolling
	case a.PodToken != "":
		key = "pods " + id
	case a.TokenHash == "":
		key, by = "renew "+id, limit.Rate{Every: a.rate.Every / tunnelEdges, Burst: tunnelBurst}
	}
	if done = l.tunnels.Take(id); done == nil {
		return nil, retry.Later("too many requests for certificates of one tunnel at the moment", busyTime)
	}
	if wait := l.attempts.Take(key, by); wait > 0 {
		done()
		return nil, retry.Later("too many certificates for one tunnel", wait)
	}
	return done, nil
}
