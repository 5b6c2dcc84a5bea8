use strict; use warnings;
my (%n, @lines, $sum);
while (my $l = <STDIN>) {
	chomp $l;
	$n{$1}++ while $l =~ /\b([a-z]{3,})\b/g;
	$sum += $1 if $l =~ /(\d+)$/;
	(my $x = $l) =~ s/(\w+) (\w+)/$2-\U$1/g;
	$x =~ tr/aeiou/AEIOU/;
	push @lines, $x;
}
printf "%-10s %5d\n", $_, $n{$_} for sort { $n{$b} <=> $n{$a} || $a cmp $b } keys %n;
print "sum $sum lines ", scalar(@lines), "\n";
print join("\n", (sort { length $a <=> length $b or $a cmp $b } @lines)[0 .. 4]), "\n";
sub fib { my $i = shift; $i < 2 ? $i : fib($i - 1) + fib($i - 2) }
print "fib ", fib(12), "\n";
eval { die { code => 42 } }; print "died $@->{code}\n";
eval { my @a = (1) x 3; my $z = $a[0] - 1; my $y = 1 / $z; }; print "error: ", $@ =~ /division by zero/ ? "zero" : "none", "\n";
print unpack("H*", pack("NnCa5d", 0xdeadbeef, 4711, 7, "perl", 1.5)), "\n";
my $s = sprintf "%.10f %e %s", atan2(1, 1) * 4, exp(10), join ",", map { $_ ** 2 } grep { $_ & 1 } 1 .. 15;
print "$s\n";
local $_ = join "", map { chr(65 + $_ % 26) } 0 .. 200;
print scalar(reverse substr($_, 10, 30)), " ", index($_, "XYZ"), "\n";
open my $f, ">", "written" or die; print $f "$_\n" for @lines; close $f;
exit 4;
