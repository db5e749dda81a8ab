package management

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestAWatchThatFailsForGoodEnds: otherwise a view would show its last state as current for ever.
func TestAWatchThatFailsForGoodEnds(t *testing.T) {
	news, failed := make(chan struct{}), make(chan error)
	reasons := make(chan error, 2)
	watch := watcher(news, failed, func(context.Context) error { return <-reasons })
	changes, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- watch(t.Context(), func() { changes <- struct{}{} }) }()

	reasons <- nil
	failed <- errors.New("too old resource version")
	news <- struct{}{} // it goes on
	<-changes
	reasons <- errors.New("the token has expired")
	failed <- errors.New("unauthorized")
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the token has expired") {
		t.Errorf("got %v", err)
	}
}
