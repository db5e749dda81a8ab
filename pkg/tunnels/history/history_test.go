package history

import (
	"fmt"
	"maps"
	"testing"
)

func TestHistoryIsBounded(t *testing.T) {
	h := New()
	h.Add(nil)
	for i := range 10 * Max {
		h.Add([]string{fmt.Sprint(i % 10)})
	}
	if _, ok := h.Since(h.Version - uint64(h.Len()) - 1); ok {
		t.Error("more is known than is remembered")
	}
	keys, ok := h.Since(h.Version - Max)
	if !ok || len(keys) != 10 {
		t.Errorf("got %q, known %t", keys, ok)
	}
	if keys, ok := h.Since(h.Version - 1); !ok || !maps.Equal(map[string]bool{"9": true}, map[string]bool{keys[0]: true}) {
		t.Errorf("got %q, known %t", keys, ok)
	}
}
