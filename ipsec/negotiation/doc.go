// Package negotiation explains failed negotiations: from strongSwan's words and the
// peer's settings it finds what went wrong and what to do about it.
package negotiation
