let rec fib n = if n < 2 then n else fib (n-1) + fib (n-2)
module M = Map.Make(Int)
let rec build m i = if i = 0 then m else build (M.add (i*7919 mod 10007) (string_of_int i) m) (i-1)
let safe f = try f () with Not_found -> "none" | Failure s -> s
let () =
  for r = 1 to 20 do
    let m = build M.empty 3000 in
    let s = M.fold (fun k v acc -> acc + k + String.length v) m 0 in
    Printf.printf "%d %d %s %s\n" r s (safe (fun () -> M.find 123456 m)) (safe (fun () -> failwith "x"))
  done;
  Printf.printf "%d %d\n" (fib 20) (Hashtbl.hash "abc")
