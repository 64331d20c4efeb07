// Command gotgt is gotgt's target, in a module of its own: nobody who uses IronWarp depends on it.
package main

import (
	"os"

	"github.com/gostor/gotgt/cmd"
)

func main() {
	if err := cmd.NewCommand().Execute(); err != nil {
		os.Exit(1)
	}
}
