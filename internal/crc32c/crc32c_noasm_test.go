//go:build !amd64

package crc32c

func archImplementations() []implementation { return nil }
