"""Bytes a second of pulls and pushes of 1 MiB, the best of 30 rounds.

python bandwidth.py COORDINATOR TOKEN_FILE
"""

import sys
import time

import numpy as np

import tidewater

BYTES, CALLS, ROUNDS = 1 << 20, 50, 30


def best(call):
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append(time.perf_counter() - started)
    return CALLS * BYTES / min(times) / 1e6


with tidewater.Session(*sys.argv[1:3], namespace="bandwidth", workers=1) as s:
    t = s.table("t", "range", dtype=np.float32, rows=16, cols=BYTES // 4 // 16)
    array = np.ones(BYTES // 4, dtype=np.float32)
    t.push(array, op="assign").wait()
    print(f"python {s.transport} pull 1048576 {best(lambda: t.pull(out=array)):.0f} MB/s")
    assert array.min() == array.max() == 1
    print(f"python {s.transport} push 1048576 {best(lambda: t.push(array, op='assign').wait()):.0f} MB/s")
