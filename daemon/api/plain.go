package api

import "regexp"

// prefixes are the names of packages that Go errors begin with. They show where in
// the program an error comes from, which is of no use to those who run it.
var prefixes = regexp.MustCompile(`(^|: |; |\n|\()(?:(?:backing|ddp|mpa|nbd|rdmap|rnbd|rping|rtrs|sctp|sctpadapt|verbs): )+`)

// Plain is an error's text for people.
func Plain(text string) string { return prefixes.ReplaceAllString(text, "$1") }
