import sys
import numpy as np
import tidewater

with tidewater.Session(*sys.argv[1:3], namespace="ten-lines", workers=1) as s:
    t = s.table("weights", "sparse", dtype=np.float32, cols=4, optimizer=("adagrad", 0.5, 1e-8))
    keys, rows = np.array([7, 1 << 40], dtype=np.uint64), np.empty((2, 4), dtype=np.float32)
    for _ in range(300):
        t.push(t.pull(keys, out=rows) - 1, keys, op="gradient").wait()
    assert abs(rows - 1).max() < 0.01, rows
