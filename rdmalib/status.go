package rdmalib

import (
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// Numbers of enum ibv_wc_status.
const (
	statusLocalLength    = 1
	statusLocalOperation = 2
	statusLocalAccess    = 4 // IBV_WC_LOC_PROT_ERR
	statusFlush          = 5
	statusBind           = 6
	statusRemoteInvalid  = 9
	statusRemoteAccess   = 10
	statusRemoteOp       = 11
	statusNoReceive      = 13 // IBV_WC_RNR_RETRY_EXC_ERR
)

// Numbers of enum ibv_wc_opcode, and bits of enum ibv_wc_flags.
const (
	opcodeSend       = 0
	opcodeWrite      = 1
	opcodeRead       = 2
	opcodeCmpSwap    = 3
	opcodeFetchAdd   = 4
	opcodeBind       = 5
	opcodeInvalidate = 6
	opcodeRecv       = 128
	opcodeRecvImm    = 129

	flagWithImm = 1 << 1
	flagWithInv = 1 << 3
)

func opcodeOf(op verbs.WCOp) uint32 {
	switch op {
	case verbs.WCWrite, verbs.WCImmediate: // of an RDMA Write with immediate data
		return opcodeWrite
	case verbs.WCRead:
		return opcodeRead
	case verbs.WCAtomic:
		return opcodeFetchAdd
	case verbs.WCBind:
		return opcodeBind
	case verbs.WCInvalidate:
		return opcodeInvalidate
	case verbs.WCRecv:
		return opcodeRecv
	case verbs.WCRecvImm:
		return opcodeRecvImm
	}
	return opcodeSend
}

func opcodeOfSend(op verbs.Opcode) uint32 {
	switch op {
	case verbs.OpWrite, verbs.OpImmediate:
		return opcodeWrite
	case verbs.OpRead:
		return opcodeRead
	case verbs.OpFetchAdd:
		return opcodeFetchAdd
	case verbs.OpCmpSwap:
		return opcodeCmpSwap
	case verbs.OpBind:
		return opcodeBind
	case verbs.OpInvalidateLocal:
		return opcodeInvalidate
	}
	return opcodeSend
}

// status is why a work request has failed. The oldest of a queue pair gets the reason of its stream's end, as far as
// it is one of its own; those behind it are flushed, as all are where the stream was closed or lost.
func (q *qp) status(wc *verbs.WC) uint32 {
	switch {
	case !errors.Is(wc.Err, verbs.ErrFlushed): // it has failed by itself
		if wc.Op == verbs.WCBind {
			return statusBind
		}
		return statusLocalOperation
	case wc.Op == verbs.WCRecv || wc.Op == verbs.WCRecvImm:
		if s := recvStatus(wc.Err); s != statusFlush && q.recvFault.CompareAndSwap(false, true) {
			return s
		}
	default:
		if s := sendStatus(wc.Err); s != statusFlush && q.sendFault.CompareAndSwap(false, true) {
			return s
		}
	}
	return statusFlush
}

// recvStatus is what is wrong with the receive that was next.
func recvStatus(err error) uint32 {
	var term *rdmap.TerminateError
	var fault *ddp.Error
	switch {
	case errors.Is(err, verbs.ErrWithdrawn):
		return statusLocalAccess
	case errors.As(err, &term), !errors.As(err, &fault):
	case fault.Layer == ddp.LayerDDP && fault.Type == ddp.TypeUntagged && fault.Code == ddp.CodeUntaggedTooLong:
		return statusLocalLength
	}
	return statusFlush
}

// sendStatus is what the peer's Terminate says of the oldest send.
func sendStatus(err error) uint32 {
	var term *rdmap.TerminateError
	if !errors.As(err, &term) {
		return statusFlush
	}
	t := &term.Terminate
	switch {
	case term.Unsupported:
		return statusRemoteInvalid
	case isAccess(t.Layer, t.Type):
		return statusRemoteAccess
	case t.Layer == ddp.LayerDDP && t.Type == ddp.TypeUntagged && t.Code == ddp.CodeUntaggedNoBuffer:
		return statusNoReceive
	case t.Layer == ddp.LayerDDP && t.Type == ddp.TypeUntagged:
		return statusRemoteInvalid
	}
	return statusRemoteOp
}

// isAccess reports whether an error of that layer and type is one of access to memory.
func isAccess(layer ddp.Layer, kind uint8) bool {
	return layer == ddp.LayerDDP && kind == ddp.TypeTagged || layer == ddp.LayerRDMA && kind == rdmap.TypeRemoteProtection
}

func isAccessFault(err error) bool {
	var fault *ddp.Error
	return errors.As(err, &fault) && isAccess(fault.Layer, fault.Type)
}
