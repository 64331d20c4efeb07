// Package invite lets two hosts that do not know each other agree on what makes them peers: a
// pre-shared key of 256 bits, and each other's names, addresses, identities and settings. One makes an
// invitation, whose token a person carries to the other; the other joins with it, over TCP in clear. It is
// no stream: nothing of a stream leaves outside ESP, and there is none before IKE has authenticated with
// the key that comes out here.
//
//	inviter                                          joiner
//	   <- Hello   id, commitment to (public key, nonce)  \
//	   Answer ->  public key, nonce                       > each with a MAC by the token's key
//	   <- Opening public key, nonce                      /
//	   <-> Details                                    sealed, as is all below
//	   <-> Ready     each could have the other as a peer
//	   both show a code of six digits, and ask
//	   <-> Confirm
//	   Written ->   the inviter has written its half
//	   <- Written   the joiner its
//	   Done ->      both keep them
//	   <- Bye
//
// X25519's result and the token's key give, by HKDF over the transcript, the keys that seal the rest, the
// pre-shared key and the code. Without the token's key nobody gets past the first message. Who has
// stolen it and stands between the hosts has an exchange of its own with each, whose codes differ: the
// joiner is bound to its key by the commitment before it sees the inviter's, so that nobody can search
// for a key that makes the codes equal, and there is one attempt, since an invitation serves one joiner.
package invite
