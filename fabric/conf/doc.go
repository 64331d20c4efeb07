// Package conf reads fabric.conf, the options of a fabric's managers, its subnet administrator (SA) and
// its agents, and the files of their management keys.
//
// The syntax is that of opensm.conf: a name and its value on each line, # before comments, TRUE and
// FALSE, numbers in decimal or behind 0x, (null) for no value. The names are OpenSM's and UFM's. Stricter
// than OpenSM, a name that is not known, a value that would be taken for another and a name set twice are
// errors, since an option that is silently ignored is protection that somebody believes to have.
//
// The keys are not in fabric.conf: m_key, sm_key and sa_key name files, of mode 0600, that have one each.
// A configuration is copied, shown and kept in version control; and new keys ([Config.WriteKey]) replace
// a file that has nothing else in it, not what somebody has written by hand.
package conf
