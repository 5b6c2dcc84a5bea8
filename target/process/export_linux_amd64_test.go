package process

// OnStep has f called before every request that can change a process; nil: no more.
func OnStep(f func(what string)) { stepHook = f }
