package verbs

// DefaultLimits are the limits of a Device whose Config says nothing.
func DefaultLimits() Limits { return defaultLimits }
