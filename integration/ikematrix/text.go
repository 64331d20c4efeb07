package ikematrix

// documentHead is docs/ipsec-matrix.md before any run.
const documentHead = `# IKE and ESP: what works with what

The tests of integration/ikematrix write this: the part about userland ESP where ` + "`make test`" + ` runs, the part about the kernel's ESP in the
virtual machine of ` + "`make interop`" + `. Both compare what they find to what stands here.

Two hosts, each with a strongSwan of its own and an ` + "`ipsec.Manager`" + `, are given each other as peers. What a row takes to work:

- A connection is admitted at both ends, under the identities that the row has. 64 KiB go to the peer and come back, and are compared.
- Both ends list what the row asks for: IKE version and algorithms, ESP algorithms, mode, ESN, and the child's own DH group with PFS.
- The child SA is deleted, at the one host in one row and at the other in the next. The same connection goes on with another 64 KiB each way, over
  another child, which has carried them by strongSwan's own count.
- A capture of the wire between the hosts has ESP and IKE, and no TCP packet outside ESP. The payload's text is to be found in it when ESP
  does not encrypt (NULL, GMAC), and not otherwise.
- Rows marked RDMA run a stream of package verbs in addition: RDMA Reads, Writes and Sends of 64 KiB.

A row that has to be refused is refused before a connection comes up; the one who refuses says the words that stand here; and where the peer
is set up, an attempt to connect regardless comes to nothing and leaves no packet in clear. A row that works though it should be refused, or the
other way round, is a failure of the test. So is it when strongSwan turns out to do what IronWarp does not ask it for.

ESN is not asked for where the data plane has none: those rows work without it, and ESN in the last column tells which have it.

A control row takes the guards down, ends strongSwan, sends the same traffic, and has to find it on the wire in clear.

The rows are generated, and the same in each run. With userland ESP they have every ESP algorithm with every kind of IKE and of authentication,
and every pair of values of any two other settings; in the virtual machine, which is slow, every ESP algorithm with every kind of IKE, and every
pair of values. What is refused has rows of its own, so that one refusal does not hide another. Profiles are the built-in ones
(` + "`ironwarp peer add --profile`" + `) with their proposals cut down to the one that the row has, or as they are.

## Userland ESP

<!-- begin userland ESP -->
<!-- end userland ESP -->

## Kernel ESP

<!-- begin kernel ESP -->
<!-- end kernel ESP -->
`

const partText = `
strongSwan {{.StrongSwan}} {{.On}}. {{.All}} rows: {{.Works}} work, {{.Refused}} are refused as expected, {{.Surprises}} surprises; {{.Clear}} packets in clear
{{- if .Control}}. The control row found its packets in clear{{end}}.

{{.Cross}}
What is refused:

{{.Refusals}}
What strongSwan says when it is asked for what IronWarp does not ask it for, past IronWarp:

{{.Asked}}
<details><summary>All rows</summary>

{{.Rows}}
</details>

`
