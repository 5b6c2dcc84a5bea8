(* Allocates, raises, hashes and sorts, so that the collector walks the stack all the time. *)
exception Odd of int

let rec tree n = if n = 0 then [] else (string_of_int n, n * n) :: tree (n - 1)

let odd n = if n land 1 = 1 then raise (Odd n) else n

let round seed =
  let h = Hashtbl.create 16 in
  List.iter (fun (k, v) -> Hashtbl.replace h k (v + seed)) (tree 2000);
  let sum = Hashtbl.fold (fun _ v a -> a + (try odd v with Odd n -> -n)) h 0 in
  let words = List.sort compare (List.map fst (tree 500)) in
  let b = Buffer.create 100 in
  List.iter (Buffer.add_string b) words;
  sum + Hashtbl.hash (Buffer.contents b)

let () =
  let n = int_of_string Sys.argv.(1) in
  for i = 1 to n do
    let r = round i in
    if i mod 50 = 0 then begin
      Gc.full_major ();
      Printf.printf "%d %d\n%!" i r
    end
  done
