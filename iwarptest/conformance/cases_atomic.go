package conformance

func atomicCases() []Case { return nil }
