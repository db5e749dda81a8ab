package informers

import "testing"

func TestObjectsAreReadByList(t *testing.T) {
	w := newWorld(t, long)
	w.run(t)
	w.create(t, "a")
	if w.streamed.Load() {
		t.Error("the informer has asked for a stream of the existing objects")
	}
}
