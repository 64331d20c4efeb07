package conf

const (
	// maxFile in bytes: opensm's own template with all of its options has 24 KB.
	maxFile = 64 << 10
	// maxLine in bytes is that of OpenSM, which silently takes the rest of a longer one for the next.
	maxLine = 1022
	// maxErrors of one file that are reported: who needs more has given another kind of file.
	maxErrors = 20
	// maxKeyFile in bytes: a key has 18 characters.
	maxKeyFile = 128
	// maxShown in bytes of a name that is not known.
	maxShown = 40
	// maxPortKeys is more than one directory has hosts (1,000), with some that are gone.
	maxPortKeys = 4096
	// maxPortKeysFile in bytes: a line has 38.
	maxPortKeysFile = 40 * (maxPortKeys + maxOldKeys)
	// maxOldKeys is how many m_keys of before are kept, by which a port is opened that was given one of them without a record. Each that is
	// tried in vain is a violation at the port.
	maxOldKeys = 2

	// MaxManagers of a fabric: each asks all others for their SMInfo in each interval, and elections of more
	// than a few gain nothing.
	MaxManagers = 16
)
