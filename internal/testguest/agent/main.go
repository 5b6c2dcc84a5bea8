// Command agent is the agent of a test's guest.
package main

import (
	"fmt"
	"os"

	"kprobes.dev/kprobes/internal/guestkit/agent"
)

func main() {
	fmt.Fprintln(os.Stderr, "agent:", agent.Serve(agent.Port))
	os.Exit(1)
}
