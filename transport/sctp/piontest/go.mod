module github.com/ironwarp/ironwarp/transport/sctp/piontest

go 1.26.0

require (
	github.com/ironwarp/ironwarp v0.0.0
	github.com/pion/logging v0.2.4
	github.com/pion/sctp v1.12.0
)

require (
	github.com/pion/randutil v0.1.0 // indirect
	github.com/pion/transport/v5 v5.1.1 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/ironwarp/ironwarp => ../../..

replace github.com/pion/transport/v5 => github.com/pion/transport/v5 v5.0.0
