// Package ikematrix brings up every combination of profile, algorithm, IKE version,
// authentication and mode that matters between two hosts with a real strongSwan each,
// by ipsec.Manager at both ends, and writes the results to docs/ipsec-matrix.md.
//
// A row of the matrix is a Case. It works when a stream that the Manager admitted has
// carried checked data both ways, has got its child SA back after a delete, the SAs are
// what the case asked for, and a capture of the wire shows ESP and IKE alone. It is
// refused when no stream came up, the error has the words of the case's Refusal, and
// again nothing was seen in clear. The matrix says which of the two is expected, so
// that a surprise either way is a failure.
//
// The rows are generated, the same ones in each run: the full cross of ESP
// algorithms, IKE versions and kinds of authentication, rows that cover all
// other pairs of settings, and one row for each thing that is refused. See Plan.
//
// The same code runs with userland ESP in network namespaces of this machine
// (go test) and with the kernel's ESP in the virtual machine of package vm (Main).
package ikematrix
