// Command prog is a program with debug information that holds all functions of abicases.
package main

import (
	"fmt"

	"kprobes.dev/kprobes/internal/abicases"
)

func main() { fmt.Println(len(abicases.Funcs), abicases.Some) }
