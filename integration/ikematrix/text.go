package ikematrix

// documentHead is docs/ipsec-matrix.md before any run.
const documentHead = `# IKE and ESP: what works with what

Two hosts, each with a strongSwan of its own and an ` + "`ipsec.Manager`" + `, are given each other as peers, in every combination below. The tests of
integration/ikematrix write this down: with userland ESP in network namespaces, and with the kernel's ESP in the virtual machine of
` + "`make interop ARGS=-whole`; without `-whole`" + ` every value is tried once there.
` + "`make test`" + ` compares the former to what it finds, and the latter to the rows that there have to be.

What a row takes to work:

- A connection is admitted at both ends, under the identities that the row has. 64 KiB go to the peer and come back, and are compared.
- Both ends list what the row asks for: IKE version and algorithms, ESP algorithms, mode, ESN, and with PFS the child's own DH group.
- The child SA is deleted, at the one host in one row and at the other in the next. The same connection goes on with another 64 KiB each way,
  over another child, which has carried them by strongSwan's own count.
- A capture of the wire between the hosts has ESP and IKE, and no packet of TCP, UDP or SCTP beside them. The payload's text is to be found in it when ESP
  does not encrypt (NULL, GMAC), and not otherwise.
- Rows marked RDMA run streams of package verbs in addition, over TCP, over SCTP in UDP, and over the kernel's SCTP where it has one: RDMA Reads,
  Writes and Sends, 64 KiB each way.

A row that has to be refused is refused before a connection comes up, with the words that stand here. Where the peers are set up, an attempt to
connect regardless comes to nothing and leaves no packet in clear. It is a failure of the test when a row works that has to be refused, or the
other way round, and when strongSwan turns out to do what IronWarp does not ask it for.

A control row takes the guards down, ends strongSwan and sends the same traffic: the same look at the wire has to find it in clear.

The rows are generated, the same ones in each run. With userland ESP there is every ESP algorithm with every kind of IKE and of authentication,
and every pair of values of any two other settings. In the virtual machine, which is slow, there is every ESP algorithm with every kind of IKE,
and every pair of values; an empty cell has not been tried. What is refused has rows of its own, so that one refusal does not hide another.
Profiles are the built-in ones (` + "`ironwarp peer add --profile`" + `), as they are or with their proposals cut down to the one of the row. ESN is not
asked for where the data plane has none; the last column says which rows have got it.

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
