import java.util.*;
import java.util.concurrent.*;

// Objects, exceptions, threads and recompilation.
public class Life {
	static int odd(int n) {
		if (n % 3 == 0) throw new IllegalArgumentException("n" + n);
		return n;
	}

	static long round(int seed) {
		Map<String, Integer> m = new HashMap<>();
		for (int i = 0; i < 3000; i++) m.merge("k" + i * 7919L % 1009, i * seed % 97, Integer::sum);
		long sum = 0;
		for (int v : m.values()) {
			try {
				sum += odd(v);
			} catch (IllegalArgumentException e) {
				sum -= e.getMessage().length() + e.getStackTrace().length;
			}
		}
		return sum;
	}

	public static void main(String[] args) throws Exception {
		int n = Integer.parseInt(args[0]);
		ExecutorService pool = Executors.newFixedThreadPool(4);
		for (int i = 1; i <= n; i++) {
			final int at = i;
			List<Future<Long>> fs = new ArrayList<>();
			for (int k = 0; k < 4; k++) {
				final int seed = at * 4 + k;
				fs.add(pool.submit(() -> round(seed)));
			}
			long sum = 0;
			for (Future<Long> f : fs) sum += f.get();
			if (i % 50 == 0) {
				System.gc();
				System.out.println(i + " " + sum);
			}
		}
		pool.shutdown();
	}
}
