//go:build !race

package self

const raceEnabled = false
