package symbol

import "sync"

// derivations are what others have made of an image, by what they are.
type derivations struct {
	mu sync.Mutex
	of map[any]*derivation
}

// derivation is one of them. Its lock is held while it is made.
type derivation struct {
	mu sync.Mutex
	v  any
}

// Derive gives what make has made of an image, and keeps it as long as the image: all that use the image share it. There is one value of each
// type. An error is given to the caller and not kept. Other callers for the same type wait meanwhile; make may derive other types.
func Derive[T any](im *Image, make func() (*T, error)) (*T, error) {
	d := im.derived.get((*T)(nil))
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.v.(*T); ok {
		return v, nil
	}
	v, err := make()
	if err != nil {
		return nil, err
	}
	d.v = v
	return v, nil
}

// get finds a derivation by its type.
func (ds *derivations) get(key any) *derivation {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	d := ds.of[key]
	if d == nil {
		if ds.of == nil {
			ds.of = map[any]*derivation{}
		}
		d = new(derivation)
		ds.of[key] = d
	}
	return d
}
