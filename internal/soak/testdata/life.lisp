;;; Conditions, unwinding, bignums and the collector.
(defun odd (n) (if (zerop (mod n 3)) (error "odd ~a" n) n))

(defun round1 (seed)
  (let ((h (make-hash-table :test 'equal)) (sum 0))
    (dotimes (i 3000)
      (incf (gethash (format nil "~a" (mod (* i 7919) 1009)) h 0) (* i seed)))
    (maphash (lambda (k v)
               (incf sum (handler-case (odd v) (error () (- (length k))))))
             h)
    (+ sum (mod (expt seed 200) 1009)
       (catch 'out (dotimes (i 100) (when (> i 90) (throw 'out i)))))))

(let ((n (parse-integer (car (last sb-ext:*posix-argv*)))))
  (loop for i from 1 to n
        do (let ((r (round1 i)))
             (when (zerop (mod i 20))
               (sb-ext:gc :full t)
               (format t "~a ~a~%" i r)
               (finish-output)))))
