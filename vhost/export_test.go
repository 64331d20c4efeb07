package vhost

import "time"

// Tire has the memory of front ends taken too long.
func (s *Server) Tire() { s.faultBudget.spend(sinceStart(), time.Hour) }
