package native

import "kprobes.dev/kprobes/internal/arch/amd64"

// BudgetCode is what generates the code that counts hits down (arch.Budget).
func BudgetCode() any { return amd64.BudgetCode() }
