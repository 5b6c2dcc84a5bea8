// The program goimport probes itself if it is built with the tag probed. Its size without is
// what a probe's is measured by.
package main

import "fmt"

func main() {
	fmt.Println("ready")
	if err := register(); err != nil {
		fmt.Println(err)
	}
	work()
}

//go:noinline
func work() { fmt.Println("work") }
