"""An MPI program in Python that brings its servers: mpirun -n 3 python begin.py."""

import numpy as np
import tidewater
from mpi4py import MPI

comm = MPI.COMM_WORLD
# Rank 0 cannot begin: no other process waits for it.
wrong = {"rdma_timeout": 23} if comm.rank == 0 else {}
try:
    tidewater.begin(comm, **wrong)
except ValueError as error:
    assert comm.rank == 0 and "use 8 to 22" in str(error), error
except tidewater.Error as error:
    assert comm.rank > 0 and "rank 0 could not start" in str(error), error
else:
    raise AssertionError("wrong arguments were accepted")

with tidewater.begin(comm, servers=2, sync="bsp", join_timeout=60, rdma_traffic_class=106) as s:
    assert (s.rank, s.workers, s.servers) == (comm.rank, comm.size, 2)
    t = s.table("counter", "range", dtype=np.int64, rows=1, cols=1, effect="clock_sum")
    for _ in range(10):
        t.push(np.array([s.rank], dtype=np.int64))
        s.tick()
    total = t.pull()
    assert total[0] == 10 * sum(range(comm.size)), total
if comm.rank == 0:
    print(f"sum {int(total.sum())}")
