package verbs

// DefaultLimits are the limits of a Device whose Config says nothing.
func DefaultLimits() Limits { return defaultLimits }

// LimitFor returns the limit of a resource of which each of n principals has a share of
// least.
func LimitFor(least int64, n int) int64 { return guaranteedPart * least * int64(n+1) }
