package admission

// Sources returns how many sources have a bucket.
func (c *Control) Sources() int { return len(c.sources.keys) }
