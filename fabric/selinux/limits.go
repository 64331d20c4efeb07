package selinux

import "time"

const (
	// pollEvery is how often the status page is looked at: how long a change of the policy may
	// stay unnoticed. A look is a few reads of memory.
	pollEvery = 100 * time.Millisecond

	// maxAnswers bounds the answers that are kept, each with two labels of some 50 bytes. The
	// peers of a control socket choose labels only as far as the kernel lets them.
	maxAnswers = 4096

	// maxLabel bounds a label in bytes: selinuxfs takes what fits into one page.
	maxLabel = 4096

	// maxRetries bounds how often a question is asked again because the policy has changed
	// meanwhile.
	maxRetries = 8
)
