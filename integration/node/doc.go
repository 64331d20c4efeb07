// Package node runs `ironwarp daemon` on the hosts of a lab, drives it as a person
// would, runs verified I/O on an attached disk, and reports whether streams are the
// same as before. The demonstration and the chaos tests share it.
package node
