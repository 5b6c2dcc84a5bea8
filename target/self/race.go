//go:build race

package self

const raceEnabled = true
