package ring

import "fmt"

// CreateOn makes a ring on a memory file that somebody else made and that is empty: one
// of the process that is to write, which maps it from its own descriptor. The Ring owns
// fd from then on. Errors are those of Create.
func CreateOn(fd int, cfg Config) (*Ring, error) {
	if cfg.CPUs == 0 {
		n, err := possibleCPUs()
		if err != nil {
			return nil, err
		}
		cfg.CPUs = n
	}
	l, err := NewLayout(cfg)
	if err != nil {
		return nil, err
	}
	r, err := create(fd, l, cfg.Sparse)
	if err != nil {
		return nil, fmt.Errorf("ring: %w", err)
	}
	return r, nil
}
