# Builtins only: no process but the shell itself.
declare -A seen
declare -i n=0 sum=0
fib() { local i=$1; if (( i < 2 )); then r=$i; return; fi; local a; fib $((i-1)); a=$r; fib $((i-2)); r=$((a+r)); }
while read -r line; do
	set -- $line
	n+=1
	for w in "$@"; do
		case $w in
		[0-9]*) sum=$(( (sum * 31 + ${w#0x7fff}0) % 65521 )) ;;
		*) seen[$w]=$(( ${seen[$w]:-0} + 1 )) ;;
		esac
	done
	if [[ $line =~ (the|jump)\ ([a-z]+) ]]; then last=${BASH_REMATCH[2]}; fi
	printf -v out '%s|%04d|%s' "${line:0:10}" "$n" "${line//o/0}"
	arr+=("${out^^}")
done
for w in the probe jump detour step boost return kernel thread; do echo "$w ${seen[$w]}"; done
fib 9; echo "fib $r last $last lines $n sum $sum"
printf '%s\n' "${arr[@]: -5}"
trap 'echo "left with $n"' EXIT
exit 3
