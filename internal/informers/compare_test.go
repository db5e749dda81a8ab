package informers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const key = "ns/a"

// run inspects one object once per minute. Each step is "cached live": the versions in the cache and at the apiserver
// in that minute, with "-" for none. In a "fail" minute the apiserver does not answer. In "frozen", nothing runs for 10
// minutes.
func run(c *comparison, steps ...string) error {
	now := time.Unix(0, 0)
	for _, step := range steps {
		now = now.Add(time.Minute)
		if step == "frozen" {
			now = now.Add(10 * time.Minute)
			continue
		}
		c.begin(now)
		if step == "fail" {
			c.fail(now)
			continue
		}
		cached, live, _ := strings.Cut(strings.ReplaceAll(step, "-", ""), " ")
		versions := func(version string) map[string]string {
			if version == "" {
				return map[string]string{}
			}
			return map[string]string{key: version}
		}
		c.observe(page{versions: versions(live)}, versions(cached))
		for _, due := range c.due(now) {
			c.inspect(due, inspection{cached: cached, read: now, live: live, answered: now})
		}
	}
	return c.stuck()
}

func repeat(step string, times int) []string { return slices.Repeat([]string{step}, times) }

func TestOnlyAChangeThatStaysMissedIsConfirmed(t *testing.T) {
	tests := map[string]struct {
		steps []string
		want  string // empty: not confirmed
	}{
		"nothing changes": {steps: repeat("1 1", 60)},
		"no object":       {steps: repeat("- -", 60)},
		"an update is missed": {
			steps: repeat("1 2", 6),
			want:  "version 2 of ns/a, and the cache has had version 1",
		},
		"a new object is missed": {
			steps: repeat("- 2", 6),
			want:  "version 2 of ns/a, and the cache has had no version",
		},
		"a deletion is missed": {
			steps: repeat("1 -", 6),
			want:  "no version of ns/a, and the cache has had version 1",
		},
		"an update is missed, not for so long":  {steps: repeat("1 2", 5)},
		"an update arrives late":                {steps: append(repeat("1 2", 5), "2 2")},
		"the cache follows behind":              {steps: []string{"1 2", "2 3", "3 4", "4 5", "5 6", "6 7", "7 8", "8 9"}},
		"the cache is before the page":          {steps: append(repeat("3 2", 5), "3 3")},
		"the object changes, and the cache not": {steps: slices.Concat(repeat("1 2", 5), repeat("1 3", 5))},
		"it changes once, and then stays missed": {
			steps: slices.Concat(repeat("1 2", 5), repeat("1 3", 6)),
			want:  "version 3",
		},
		"an outage": {steps: append([]string{"1 2"}, repeat("fail", 60)...)},
		"the first minutes after an outage": {
			steps: slices.Concat([]string{"1 2"}, repeat("fail", 60), repeat("1 2", 4)),
		},
		"still missed long after an outage": {
			steps: slices.Concat([]string{"1 2"}, repeat("fail", 60), repeat("1 2", 5)),
			want:  "version 2",
		},
		"an outage after it was confirmed":          {steps: append(repeat("1 2", 6), "fail"), want: "version 2"},
		"the cache continues after it is confirmed": {steps: append(repeat("1 2", 6), "2 2")},
		"a process that was frozen":                 {steps: []string{"1 2", "1 2", "frozen", "1 2", "1 2"}},
		"deleted and made again":                    {steps: slices.Concat(repeat("1 -", 5), repeat("1 3", 5))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(newComparison("Tunnel", 5*time.Minute), tc.steps...)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if err != nil && !strings.Contains(err.Error(), "kind Tunnel") {
				t.Errorf("%v names no kind", err)
			}
		})
	}
}

func TestAPageDoesNotCoverObjectsOutsideOfIt(t *testing.T) {
	cached := map[string]string{"a-b/z": "1", "a/b": "1", "a/c": "1", "a/d": "1", "b/a": "1"}
	tests := map[string]struct {
		page page
		want []string
	}{
		// "-" sorts before "/"
		"the first of several": {page: page{last: "a/b", versions: map[string]string{"a/b": "1"}}, want: []string{"a-b/z"}},
		"one in the middle": {
			page: page{after: "a/b", last: "a/d", versions: map[string]string{"a/d": "1"}},
			want: []string{"a/c"},
		},
		"the last": {page: page{after: "a/d", versions: map[string]string{}}, want: []string{"b/a"}},
		"the only one": {
			page: page{versions: map[string]string{"a/b": "1", "a/c": "2", "a/d": "1", "b/a": "1", "new/a": "1"}},
			want: []string{"a-b/z", "a/c", "new/a"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newComparison("Tunnel", time.Minute)
			c.observe(tc.page, cached)
			if got := slices.Sorted(maps.Keys(c.mismatches)); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestMismatchesAreBounded(t *testing.T) {
	c, all := newComparison("Tunnel", 5*time.Minute), map[string]string{}
	for i := range 10 * bound {
		all[fmt.Sprintf("ns/%d", i)] = "1"
	}
	now := time.Unix(0, 0)
	c.observe(page{versions: all}, nil)
	if got := len(c.due(now)); got != bound {
		t.Fatalf("%d mismatches are remembered, want %d", got, bound)
	}
	for _, key := range c.due(now) {
		c.inspect(key, inspection{read: now, live: "1", answered: now})
	}
	now = now.Add(5 * time.Minute)
	for _, key := range c.due(now) { // these change all the time and therefore prove nothing
		c.inspect(key, inspection{read: now, live: "2", answered: now})
	}
	if err := c.stuck(); err != nil || len(c.mismatches) == bound {
		t.Errorf("%d mismatches keep their places, %v", len(c.mismatches), err)
	}
	if err := run(c, repeat("- 2", 6)...); err == nil {
		t.Error("one that stays missed finds no place")
	}
}
