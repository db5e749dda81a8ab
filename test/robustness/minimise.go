package robustness

import "slices"

// Minimise drops steps of a schedule that fails, as long as it still fails without them, and returns what remains. It
// tries at most as many schedules as attempts. First it drops large parts, then smaller ones (Zeller and Hildebrandt,
// Simplifying and Isolating Failure-Inducing Input, 2002). The remaining steps keep their distances, and the first one
// begins at once.
func Minimise(steps []Step, attempts int, fails func([]Step) bool) []Step {
	for part := (len(steps) + 1) / 2; part > 0 && len(steps) > 1; {
		dropped := false
		for at := 0; at < len(steps) && attempts > 0; {
			fewer := shift(slices.Delete(slices.Clone(steps), at, min(at+part, len(steps))))
			attempts--
			if len(fewer) > 0 && fails(fewer) {
				steps, dropped = fewer, true
				continue
			}
			at += part
		}
		switch {
		case attempts == 0:
			return steps
		case dropped && part <= len(steps):
			part = min(part, (len(steps)+1)/2)
		default:
			part /= 2
		}
	}
	return steps
}

// shift returns the steps with the first one at the begin.
func shift(steps []Step) []Step {
	if len(steps) == 0 {
		return nil
	}
	first := steps[0].At
	for i := range steps {
		steps[i].At -= first
	}
	return steps
}
