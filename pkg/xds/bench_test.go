package xds_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pkg/model"
	"github.com/fairlead/fairlead/pkg/xds"
)

// BenchmarkAdmit decides about edges where there are 10,000 tunnels, 100 revoked edges and 1,000 ended tunnels.
func BenchmarkAdmit(b *testing.B) {
	s, subjects := large(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		_ = s.Admit(subjects[i%len(subjects)])
		i++
	}
}

// BenchmarkRevoke is the change of one Tunnel among 10,000 that revokes an edge.
func BenchmarkRevoke(b *testing.B) {
	s, _ := large(b)
	i := 0
	for b.Loop() {
		wc := workload("c1")
		wc.Revoked = []string{fmt.Sprintf("edge-%d", i)}
		s.Publish(wc.Key, &wc)
		i++
	}
}

func large(b *testing.B) (*xds.Server, []model.Subject) {
	b.Helper()
	s := xds.NewServer(inst, slog.New(slog.DiscardHandler))
	b.Cleanup(s.Close)
	ended := map[string]time.Time{}
	for i := range 1000 {
		ended[workload(fmt.Sprintf("e%d", i)).ID] = time.Now().Add(time.Hour)
	}
	s.Ended(ended)
	var all []model.WorkloadCluster
	var subjects []model.Subject
	for i := range 10_000 {
		wc := workload(fmt.Sprintf("c%d", i))
		if i < 100 {
			wc.Revoked = []string{fmt.Sprintf("edge-revoked-%d", i)}
		}
		all = append(all, wc)
		subjects = append(subjects, node(wc, fmt.Sprintf("edge-%d", i)))
	}
	s.Replace(all)
	return s, subjects
}
