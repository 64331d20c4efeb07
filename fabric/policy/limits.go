package policy

const (
	// maxFile bounds a file in bytes: ten times the largest that the other limits leave room
	// for in a usual style.
	maxFile = 1 << 20

	// maxLine bounds a line in bytes, because checkmodule's scanner ends with an error at
	// 8191.
	maxLine = 4096

	// maxSymbols bounds types and attributes together. A port of an adapter has at most some
	// hundred partitions, and a host fewer services; the table of decisions has a bit for
	// each pair, so it takes at most 512 KiB.
	maxSymbols = 2048

	// maxRules bounds the allow and neverallow rules, so that even the worst file, whose every
	// rule is about all pairs of types, is compiled in about a second.
	maxRules = 4096

	// maxPartitions bounds partcon statements: as many P_Keys as there are (IBTA 10.9.1),
	// 1 to 0x7fff.
	maxPartitions = 1<<15 - 1

	// maxName bounds an identifier in bytes: the kernel takes a request about two contexts
	// only within one page.
	maxName = 128

	// maxContext bounds a context in bytes: three identifiers and a long range.
	maxContext = 1024

	// maxDepth bounds how deep sets are nested.
	maxDepth = 32

	// maxErrors bounds the errors that one file is reported with: a screen of them.
	maxErrors = 20
)
