"""Servers inside this process: they work, end with their session, and are refused inside a job."""

import os
import pathlib
import pickle
import subprocess
import sys
import time

import numpy as np
import tidewater


def ten_lines():
    with tidewater.local(servers=2) as s:
        t = s.table("weights", "sparse", dtype=np.float32, cols=4, optimizer=("adagrad", 0.5, 1e-8))
        keys, rows = np.array([7, 1 << 40], dtype=np.uint64), np.empty((2, 4), dtype=np.float32)
        for _ in range(300):
            t.push(t.pull(keys, out=rows) - 1, keys, op="gradient").wait()
        assert abs(rows - 1).max() < 0.01, rows
        assert (s.servers, s.workers) == (2, 1)
        assert server_threads()
        raises(tidewater.Error, "cannot be pickled", lambda: pickle.dumps(s))


def placed():
    """Partitions are on the servers of the list; lists that cannot be are refused."""
    with tidewater.local(servers=2) as s:
        assert len(s.server_appliers) == 2
        t = s.table("w", "range", dtype=np.float64, cols=1, rows=9000, partition_servers=[1, 0, 1, 1])
        assert (t.partitions, t.partition_servers) == (4, [1, 0, 1, 1])
        t.push(np.arange(9000.0)).wait()
        assert t.pull().reshape(-1).tolist() == list(range(9000))
        assert s.table("v", "sparse", dtype=np.float64, cols=1, partitions=4).partition_servers == [0, 1, 0, 1]
        for words, given in (("empty list", []), ("partition 1 to server 2", [0, 2]), ("3 servers for 4", [0, 0, 1])):
            make = lambda given=given: s.table(
                "x", "sparse", dtype=np.float64, cols=1, partitions=4 if len(given) == 3 else 0, partition_servers=given
            )
            raises(Exception, words, make)
        raises(Exception, "partition 0 on server 1, asked for server 0", lambda: s.table(
            "w", "range", dtype=np.float64, cols=1, rows=9000, partition_servers=[0, 0, 1, 1]))


def cut():
    """Partitions begin where the list says; lists that cannot be are refused."""
    with tidewater.local(servers=2) as s:
        t = s.table("w", "rows", dtype=np.float64, cols=2, rows=9, partition_servers=[1, 0], partition_starts=[0, 7])
        assert (t.partitions, t.partition_servers, t.partition_starts) == (2, [1, 0], [0, 7])
        t.push(np.arange(18.0).reshape(9, 2), range(9)).wait()
        assert t.pull(range(9)).reshape(-1).tolist() == list(range(18))
        even = s.table("v", "range", dtype=np.float64, cols=1, rows=2048, block_bytes=4096, partitions=2)
        assert even.partition_starts == [0, 1024]
        sparse = s.table("u", "sparse", dtype=np.float64, cols=1)
        assert sparse.partition_starts is None
        for words, given in (("empty list", []), ("partition 0 at 1", [1, 2]), ("partition 2 at 4", [0, 4, 4]),
                             ("partition 1 at 9", [0, 9])):
            raises(Exception, words, lambda given=given: s.table(
                "x", "rows", dtype=np.float64, cols=1, rows=9, partition_starts=given))
        raises(Exception, "inside a block", lambda: s.table(
            "x", "range", dtype=np.float64, cols=1, rows=9000, block_bytes=4096, partition_starts=[0, 1000]))
        raises(Exception, "partition 1 at 7, asked for 6", lambda: s.table(
            "w", "rows", dtype=np.float64, cols=2, rows=9, partition_servers=[1, 0], partition_starts=[0, 6]))


def server_threads():
    """Names of the threads of coordinator and servers."""
    names = [(task / "comm").read_text().strip() for task in pathlib.Path("/proc/self/task").iterdir()]
    return [name for name in names if name.startswith("tw-")]


def ended():
    """Whether no thread of a cluster is left; one that makes memory ready may go on for a moment."""
    until = time.monotonic() + 10
    while server_threads() and time.monotonic() < until:
        time.sleep(0.05)
    return not server_threads()


def raises(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind.__name__} with {words!r}")


def failing():
    with tidewater.local(servers=2):
        raise KeyError("the program's own")


def refused(words, **variables):
    code = "import tidewater\ntry: tidewater.local()\nexcept tidewater.Error as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert words in done.stdout, done


ten_lines()
assert ended(), server_threads()
raises(KeyError, "the program's own", failing)
assert ended(), server_threads()
placed()
cut()
ten_lines()  # a process may have one after another
refused("TIDEWATER_JOB names a job", TIDEWATER_JOB="/nowhere")
refused("process 1 of 4 of Open MPI", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_RANK="1")
raises(ValueError, "at least 1 server", lambda: tidewater.local(0))
raises(ValueError, "use 0 to 15", lambda: tidewater.Session("127.0.0.1:1", "/nowhere", rdma_service_level=16))
raises(ValueError, "there is no RDMA setting", lambda: tidewater.Session("127.0.0.1:1", "/nowhere", rdma_class=16))
raises(TypeError, "unexpected keyword argument 'class_'", lambda: tidewater.Session("127.0.0.1:1", "/nowhere", class_=1))
print("ok: servers inside Python")
