"""One of the workers that mpirun has started: it finds its job, and sees what all of them have pushed."""
import numpy as np
import tidewater

with tidewater.Session(sync="bsp", join_timeout=30) as s:
    t = s.table("ranks", "rows", dtype=np.int64, rows=s.workers, cols=1, effect="clock_sum")
    t.push(np.array([[s.rank + 1]]), np.array([s.rank], dtype=np.uint64))
    s.tick()
    seen = t.pull(np.arange(s.workers, dtype=np.uint64))[:, 0]
    assert list(seen) == list(range(1, s.workers + 1)), seen
    print(f"ok: worker {s.rank} of {s.workers}")
