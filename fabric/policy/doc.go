// Package policy decides which labels may use which RDMA partitions, by a file in a strict
// subset of SELinux' policy language, for hosts whose kernel does not do that. It knows
// neither sockets nor verbs. Package selinux asks the kernel instead; both are a Decider.
//
// A file is a policy module, which checkmodule(8) compiles as it is:
//
//	module fabric 1.0;
//
//	require { class rdma_partition { modify }; }
//
//	attribute hpc;
//	type solver_t, hpc;
//	type viewer_t;
//	type research_part_t;
//
//	allow hpc research_part_t : rdma_partition { modify };
//	neverallow viewer_t research_part_t : rdma_partition { modify };
//
//	#partcon 0x0012 system_u:object_r:research_part_t
//
// There are the statements module, require (of the class, types and attributes), type,
// attribute, typeattribute, allow and neverallow. Sets are { a b }, nested, with -a or
// a - b for what is left out, self for a target that is the source, and in neverallow
// also * and ~. Each means what it means to checkmodule; Parse refuses everything else of
// SELinux' language (ErrBeyondSubset), and never skips a statement. What no allow
// rule names is denied.
//
// #partcon gives the P_Key of a partition its label. To checkmodule it is a comment:
// SELinux has no statement for that, as ibpkeycon takes the prefix of an InfiniBand
// subnet, and no module may have any of the kind, only a base policy. It has no space
// after the #, as Go's directives; Parse refuses comments that look like one and are none.
package policy
