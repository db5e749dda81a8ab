package identity

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/api/v1alpha1"
	"github.com/fairlead/fairlead/test/outsider"
	"github.com/fairlead/fairlead/test/world"
)

// tokenWatch reads a member's bootstrap Secret continuously.
type tokenWatch struct {
	m      *world.Member
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	seen   map[string]time.Time // by token, when it was last in the Secret
	least  time.Duration        // shortest remaining validity of the token in the Secret
	errors []string
}

func watchTokens(t *testing.T, m *world.Member) *tokenWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &tokenWatch{m: m, cancel: cancel, seen: map[string]time.Time{}, least: tokenLifetime}
	w.done.Go(func() { w.run(ctx) })
	return w
}

func (w *tokenWatch) run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := w.check(ctx); err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.errors = append(w.errors, err.Error())
			w.mu.Unlock()
		}
	}
}

// check records the remaining validity of the token in the Secret. A token without a record in the Tunnel has none.
func (w *tokenWatch) check(ctx context.Context) error {
	secret, err := w.m.Secret(ctx, v1alpha1.BootstrapSecretSuffix)
	if err != nil {
		return err
	}
	token := string(secret.Data[v1alpha1.BootstrapTokenKey])
	r, err := record(ctx, w.m, token)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[token] = time.Now()
	w.least = min(w.least, time.Until(r.ExpiresAt.Time))
	return nil
}

// tokensInTheEnd proves what has become of the tokens by the end of the test.
func (d *doors) tokensInTheEnd(t *testing.T) {
	d.tokens.cancel()
	d.tokens.done.Wait()
	that(t, "the bootstrap Secret always has a token that is valid for long enough", func(t *testing.T) {
		measured("token_left_s", d.tokens.least.Seconds())
		if len(d.tokens.errors) > 0 || d.tokens.least < tokenLifetime/4 || len(d.tokens.seen) < 3 {
			t.Errorf("%d tokens, the least time left %s, errors %q", len(d.tokens.seen), d.tokens.least, d.tokens.errors)
		}
	})
	that(t, "an expired token is rejected and removed from the record", func(t *testing.T) {
		stranger := outsider.Outsider{From: d.Network.Workload, Domain: domain, Roots: d.Roots(t)}
		now := tokenOf(t, d.tokens.m)
		for token, last := range d.tokens.seen {
			if token == now || time.Since(last) < tokenLifetime {
				continue
			}
			if _, err := record(t.Context(), d.tokens.m, token); err == nil {
				t.Error("a token that has expired is still on record")
			}
			if _, err := enrol(t.Context(), stranger, token, csrFor(t)); status.Code(err) == codes.OK {
				t.Error("a token that has expired gave a certificate")
			}
		}
	})
}
