package scale

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead/fairlead/internal/retry"
	"github.com/fairlead/fairlead/test/lab/proc"
)

// request is the key by which the management cluster's apiserver counts requests.
type request struct{ verb, resource, subresource string }

var (
	counted = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)
	label   = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// writes returns the number of write requests to the apiserver so far, without leases.
func (w *world) writes(ctx context.Context) (map[request]float64, error) {
	httpClient, err := rest.HTTPClientFor(w.Management.Config)
	if err != nil {
		return nil, err
	}
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Management.URL()+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := httpClient.Do(ask)
	if err != nil {
		return nil, fmt.Errorf("reading the apiserver's metrics: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the apiserver's metrics: %w", err)
	}
	all := map[request]float64{}
	for _, m := range counted.FindAllSubmatch(body, -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllSubmatch(m[1], -1) {
			labels[string(l[1])] = string(l[2])
		}
		n, err := strconv.ParseFloat(string(m[2]), 64)
		if err != nil {
			return nil, err
		}
		switch verb := labels["verb"]; verb {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE":
			if labels["resource"] != "leases" {
				all[request{verb, labels["resource"], labels["subresource"]}] += n
			}
		}
	}
	return all, nil
}

// quiet waits until there are hardly any writes: the controller has finished its work for n workload clusters.
func (w *world) quiet(ctx context.Context, n int) error {
	const perSecond = 15 // periodic checks, and updates of when edges were last seen, which are at most 7.5 per second
	last := math.Inf(1)
	return proc.Wait(ctx, patience+time.Duration(n)*allPatience, func(ctx context.Context) error {
		if err := retry.Sleep(ctx, time.Second); err != nil {
			return err
		}
		all, err := w.writes(ctx)
		if err != nil {
			return err
		}
		sum := 0.0
		for _, n := range all {
			sum += n
		}
		more := sum - last
		if last = sum; more < 0 || more > perSecond {
			return fmt.Errorf("%.0f writes in a second", more)
		}
		return nil
	})
}

// written records the number of writes since before, for each of n Clusters, and prints them by kind.
func (w *world) written(ctx context.Context, r *results, before map[request]float64, n int) error {
	after, err := w.writes(ctx)
	if err != nil {
		return err
	}
	sum := 0.0
	for _, of := range slices.SortedFunc(maps.Keys(after), func(a, b request) int {
		return cmp.Compare(after[b]-before[b],
			after[a]-before[a])
	}) {
		more := (after[of] - before[of]) / float64(n)
		if sum += more; more > 0.05 {
			r.out.Printf(
				"%6d  %-14s %.2f × %s", r.size, "apiserver", more,
				strings.TrimSuffix(of.verb+" "+of.resource+"/"+of.subresource, "/"),
			)
		}
	}
	r.of("apiserver", "writes for a new Cluster", "requests", sum)
	return nil
}
