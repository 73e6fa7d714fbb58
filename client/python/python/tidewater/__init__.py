"""Client of the Tidewater parameter server.

    import numpy as np, tidewater
    with tidewater.Session() as s:                       # the job that the environment names
        t = s.table("weights", "sparse", dtype=np.float32, cols=8, optimizer=("adagrad", 0.1, 1e-8))
        keys = np.array([7, 1 << 40], dtype=np.uint64)
        rows = np.empty((2, 8), dtype=np.float32)
        t.pull(keys, out=rows)                           # into the array, without a copy
        t.push(rows - 1, keys, op="gradient").wait()
        s.tick()

Without a job, `with tidewater.local(servers=2) as s:` has servers on threads of this process; programs that use
MPI have them by `with tidewater.begin(MPI.COMM_WORLD) as s:`. The package contains the program `tidewater`, which
starts jobs of processes: `tidewater run --servers 2 --workers 4 -- python program.py`, or `python -m tidewater`.

A session may be used by several threads; calls wait for each other, without the interpreter lock.
It belongs to one process: in a forked child every call raises ForkedError. Sessions and tables can be
pickled, as what they were opened with: the copy joins the same job as another worker.

Session.update and Session.reduce run expressions where the data is. VectorSpace makes vectors that live on the
servers, and Evaluation lets all workers evaluate a cost and its gradient. tidewater.torch has classes for PyTorch,
tidewater.data readers of training data, tidewater.metrics merges the program's metrics over all workers.
"""

import atexit
import multiprocessing.process
import multiprocessing.util
import os

from ._tidewater import (
    CachedTable,
    Call,
    Error,
    ForkedError,
    Pull,
    Pulled,
    PushBuffer,
    Schedule,
    Session,
    Table,
    Ticket,
    Walltime,
    __version__,
    begin,
    local,
)
from . import data
from .evaluation import Evaluation
from .vector import Vector, VectorSpace

__all__ = [
    "CachedTable",
    "Call",
    "Error",
    "Evaluation",
    "ForkedError",
    "Pull",
    "Pulled",
    "PushBuffer",
    "Schedule",
    "Session",
    "Table",
    "Ticket",
    "Vector",
    "VectorSpace",
    "Walltime",
    "__version__",
    "begin",
    "data",
    "local",
]

# Sessions that were unpickled in this process, so that tables of one session share one again. A session that
# its user closed is replaced by a new one.
_restored = {}


def _finish_restored():
    """Finishes the restored sessions that are still open: nothing else does at the end of the process."""
    for (pid, _), session in list(_restored.items()):
        if pid == os.getpid() and not session.closed:
            try:
                session.finish()
            finally:
                session.close()


def _restore_session(wanted):
    key = (os.getpid(), tuple(sorted(wanted.items(), key=lambda item: item[0])))
    session = _restored.get(key)
    if session is None or session.closed:
        if not any(pid == os.getpid() for pid, _ in _restored):
            # Worker processes of multiprocessing end without the handlers of atexit.
            if multiprocessing.process.parent_process() is None:
                atexit.register(_finish_restored)
            else:
                multiprocessing.util.Finalize(None, _finish_restored, exitpriority=100)
        wanted = dict(wanted)
        session = Session(wanted.pop("coordinator"), wanted.pop("token_file"), **wanted)
        _restored[key] = session
    return session


def _restore_table(session, name, dtype):
    return session.open_table(name, dtype)
