# Processes: pipes, subshells, substitutions, background jobs, traps; all of it before the shell
# reads its input, and again after it.
trap 'echo usr1' USR1
f() { ( exit "$1" ); echo "status $?"; }
all() {
	sort all | uniq -c | sort -k1,1nr -k2 | sed -n '1,10p'
	total=$(wc -l < all); echo "lines $total"
	for i in 1 2 3 4; do ( read -r a b rest < all; echo "$i $a $b $(( i * total ))" ); done
	{ echo one; echo two; } | while read -r x; do echo "<$x>"; done
	f 0; f 7
	( sleep 0.01; exit 5 ) & p=$!; wait $p; echo "waited $?"
	( kill -USR1 $$ ); echo after
	diff <(head -3 all) <(tail -3 all) | head -4
	tr a-z A-Z <<END | rev
here is $(echo a document)
END
}
all
n=0; while read -r line; do n=$((n+1)); last=$line; done; echo "read $n, $last"
all
