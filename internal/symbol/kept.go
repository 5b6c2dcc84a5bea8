package symbol

import (
	"runtime"
	"sync"
	"time"
)

// Kept is a value that takes long to make. It goes with the first garbage collection that finds that nobody has asked for it for
// a while. Several collections may fall into one use of it.
type Kept[T any] struct {
	mu   sync.Mutex
	v    *T
	used time.Time // last
}

// keptFor is how long a value is kept that nobody asks for.
const keptFor = 10 * time.Second

// Get gives the value, and makes it if it is not there. What make gives is not kept if it is nil, or with an error.
func (k *Kept[T]) Get(make func() (*T, error)) (*T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = time.Now()
	if k.v != nil {
		return k.v, nil
	}
	v, err := make()
	if v != nil && err == nil {
		k.v = v
		k.watch()
	}
	return v, err
}

// collection is garbage at once: its finalizer runs behind the next collection. It has a pointer, for the runtime puts small
// objects without one together, and then collects none of them alone.
type collection struct{ _ *byte }

func (k *Kept[T]) watch() {
	runtime.SetFinalizer(&collection{}, func(*collection) { k.collected() })
}

// collected is called behind a collection. It waits for nobody: all finalizers have one goroutine.
func (k *Kept[T]) collected() {
	if !k.mu.TryLock() {
		k.watch()
		return
	}
	defer k.mu.Unlock()
	if time.Since(k.used) < keptFor {
		k.watch()
		return
	}
	k.v = nil
}
