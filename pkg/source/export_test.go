package source

import "time"

// CompareEvery shortens the times of the comparison of caches with the apiserver.
func (k *Kube) CompareEvery(interval, limit time.Duration) {
	k.compareEvery, k.compareLimit = interval, limit
}

// MarkJoining is markJoining.
var MarkJoining = markJoining
