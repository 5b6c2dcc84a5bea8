;; Continuations, exceptions, bignums and hash tables.
(use-modules (ice-9 hash-table) (srfi srfi-1))

(define (odd n) (if (zero? (modulo n 3)) (throw 'odd n) n))

(define (round1 seed)
  (let ((h (make-hash-table)))
    (do ((i 0 (1+ i))) ((= i 2000))
      (let ((k (number->string (modulo (* i 7919) 1009))))
        (hash-set! h k (+ (hash-ref h k 0) (* i seed)))))
    (+ (hash-fold (lambda (k v a)
                    (+ a (catch 'odd (lambda () (odd v)) (lambda (key n) (- (string-length k))))))
                  0 h)
       (call/cc (lambda (out) (for-each (lambda (x) (if (> x 90) (out x))) (iota 100)) 0))
       (modulo (expt seed 50) 1009))))

(define n (string->number (cadr (command-line))))
(do ((i 1 (1+ i))) ((> i n))
  (let ((r (round1 i)))
    (when (zero? (modulo i 20))
      (display i) (display " ") (display r) (newline))))
