package source

import "time"

// CompareEvery shortens the times of the comparison of caches with the apiserver.
func (k *Kube) CompareEvery(interval, limit time.Duration) {
	k.compareEvery, k.compareLimit = interval, limit
}

// Queued returns how many keys wait to be processed.
func (k *Kube) Queued() int { return k.queue.Len() }

// MarkJoining is markJoining.
var MarkJoining = markJoining
