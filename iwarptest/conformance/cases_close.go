package conformance

func closeCases() []Case { return nil }
