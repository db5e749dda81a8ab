package server

import (
	"crypto/x509"
	"time"

	"github.com/fairlead/fairlead/internal/limit"
	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/pkg/certs"
)

const (
	// maxInFlight bounds what callers, whom anybody on the internet may be, can have us hold at a time, and
	// maxInFlightEach what one of them can: an address, or one that has a certificate.
	maxInFlight, maxInFlightEach = 512, 32
	// maxInFlightTunnel is what the edges of one tunnel can: 16 tunnels that have turned hostile do not take it all.
	maxInFlightTunnel = 32
	// maxKeys bounds what is remembered of each kind: about 300 bytes for a key.
	maxKeys = 16_384
	// busyTime is when to come back if the server is busy: a signature takes far less.
	busyTime = time.Second
	// renewals is how many times a node may renew in the life of a leaf, beyond renewalBurst: enough for one that asks again
	// and again while no signer is there.
	renewals, renewalBurst = 300, 30
	// minRenewal bounds that for leaves of seconds.
	minRenewal = 500 * time.Millisecond
	// tunnelEdges is how many edges of one tunnel may renew as often as that: as many as a Tunnel's status lists. Ten times as many
	// may do so at once, after an outage.
	tunnelEdges, tunnelBurst = 100, 1000
)

var (
	// refusalRate is for refused attempts of one address. Agents that are refused ask again after 10 s or more.
	refusalRate = limit.Rate{Every: 3 * time.Second, Burst: 20}
	// tokenRate is for one token: a hundred machines that join together are done within half a minute.
	tokenRate = limit.Rate{Every: 250 * time.Millisecond, Burst: 64}
	// enrolRate is for all tokens of one tunnel. Each attempt is a CertificateSigningRequest, which stays for an hour: so one tunnel
	// has about 2,300 of them at most.
	enrolRate = limit.Rate{Every: 2 * time.Second, Burst: 512}
	// gatewayRate is for the first leaves of one gateway.
	gatewayRate = limit.Rate{Every: 10 * time.Second, Burst: 10}
	// reviewRate is for questions to the apiserver about ServiceAccount tokens: anybody inside may have us ask.
	reviewRate    = limit.Rate{Every: 2 * time.Second, Burst: 20}
	allReviewRate = limit.Rate{Every: 100 * time.Millisecond, Burst: 100}
	// sayRate is how often the same trouble of the same caller is logged.
	sayRate = limit.Rate{Every: 10 * time.Minute, Burst: 1}
)

// limits is what a Server remembers of its callers.
type limits struct {
	inFlight, tunnels                        *limit.Slots // by caller, and by tunnel id
	refusals, attempts, reviews, said, boots *limit.Rates
	bootEnds, bootTokens                     *limit.Rates // what is said of boots: of which machine, and by which token
}

func newLimits() *limits {
	return &limits{
		inFlight: limit.NewSlots(maxInFlight, maxInFlightEach), tunnels: limit.NewSlots(maxInFlight, maxInFlightTunnel),
		refusals: limit.NewRates(maxKeys), attempts: limit.NewRates(maxKeys), reviews: limit.NewRates(maxKeys), said: limit.NewRates(maxKeys),
		boots: limit.NewRates(maxKeys), bootEnds: limit.NewRates(maxKeys), bootTokens: limit.NewRates(maxKeys),
	}
}

// renewalRate is relative to how long the leaf lives that is renewed, so that leaves of seconds can be used.
func renewalRate(leaf *x509.Certificate) limit.Rate {
	life := leaf.NotAfter.Sub(leaf.NotBefore) - certs.ClockSkew // by which leaves begin earlier
	return limit.Rate{Every: max(life/renewals, minRenewal), Burst: renewalBurst}
}

// review counts a question to the apiserver, of one address and of all.
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

// ofTunnel counts an attempt of an edge for its tunnel, and returns what gives its slot back.
func (l *limits) ofTunnel(a attempt) (done func(), err error) {
	id := a.Subject.ID
	if id == "" {
		return func() {}, nil
	}
	key, by := "enrol "+id, enrolRate
	if a.TokenHash == "" { // separate, so that a stolen token keeps no edge from renewing
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
