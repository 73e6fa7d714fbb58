;; y += a * x over elements of f64, and their sum. The argument is a, 8 bytes; the only input is x.
;; The offsets are those of the call record.
(module
  (memory (export "memory") 1)

  (func (export "update") (param $call i32) (result i64)
    (local $a f64) (local $x i32) (local $y i32) (local $end i32)
    (if (i32.lt_u (i32.load offset=36 (local.get $call)) (i32.const 8))
      (then (return (i64.const 1)))) ;; the argument is missing
    (if (i32.ne (i32.load offset=8 (local.get $call)) (i32.const 2))
      (then (return (i64.const 2)))) ;; the table does not hold f64
    (if (i32.ne (i32.load offset=44 (local.get $call)) (i32.const 1))
      (then (return (i64.const 3)))) ;; not one input
    (local.set $a (f64.load (i32.load offset=32 (local.get $call))))
    (local.set $x (i32.load (i32.load offset=40 (local.get $call))))
    (local.set $y (i32.load offset=16 (local.get $call)))
    (local.set $end
      (i32.add (local.get $y) (i32.shl (i32.load offset=20 (local.get $call)) (i32.const 3))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $y) (local.get $end)))
        (f64.store (local.get $y)
          (f64.add
            (f64.mul (local.get $a) (f64.load (local.get $x)))
            (f64.load (local.get $y))))
        (local.set $x (i32.add (local.get $x) (i32.const 8)))
        (local.set $y (i32.add (local.get $y) (i32.const 8)))
        (br $next)))
    (i64.const 0))

  (func (export "reduce") (param $call i32) (result i64)
    (local $sum f64) (local $y i32) (local $end i32)
    (if (i32.ne (i32.load offset=8 (local.get $call)) (i32.const 2))
      (then (return (i64.const -2))))
    (local.set $y (i32.load offset=16 (local.get $call)))
    (local.set $end
      (i32.add (local.get $y) (i32.shl (i32.load offset=20 (local.get $call)) (i32.const 3))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $y) (local.get $end)))
        (local.set $sum (f64.add (local.get $sum) (f64.load (local.get $y))))
        (local.set $y (i32.add (local.get $y) (i32.const 8)))
        (br $next)))
    (f64.store (i32.load offset=48 (local.get $call)) (local.get $sum))
    (i64.const 8)))
