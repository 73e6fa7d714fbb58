"""A simulation that learns while it runs, in Python: the same program as client/tidewater/examples/heat.rs,
where it is explained, and the same numbers. With --mpi the rank is MPI's and the edges go by
Sendrecv, as in a program that used mpi4py before.

    tidewater run --servers 2 --workers 2 -- python heat.py
    mpirun -n 2 python heat.py --mpi             beside a service, which the environment names
"""

import argparse
import sys

import numpy as np

import tidewater

N = 64  # cells of an edge of the plate
STEPS = 600
CONDUCTIVITY = 0.2
WEIGHTS = 9  # a cell and its eight neighbours
BINS = 8
ROLLOUT = 20


def around(heat):
    """The cells' surroundings, row by row; the cells are in the middle."""
    rows = heat.shape[0] - 2
    return np.stack([heat[n // 3 : n // 3 + rows, n % 3 : n % 3 + N] for n in range(WEIGHTS)])


def conduct(x):
    return x[4] + CONDUCTIVITY * (x[1] + x[3] + x[5] + x[7] - 4.0 * x[4])


class Strip:
    """Rows first to first + rows of the plate, one above and below, and a rim that stays cold."""

    def __init__(self, rank, workers):
        self.rank, self.workers = rank, workers
        self.first = rank * N // workers
        self.rows = (rank + 1) * N // workers - self.first
        self.heat = np.zeros((self.rows + 2, N + 2))

    def row(self, row):
        return self.heat[row, 1 : N + 1]

    def light(self, seed):
        """Lights two cells of the plate, the same ones on every worker; the next seed."""
        for _ in range(2):
            seed = (seed * 1103515245 + 12345) % (1 << 31)
            row, column = divmod(seed // 1024 % (N * N), N)
            if self.first <= row + 1 and row <= self.first + self.rows:
                self.heat[row + 1 - self.first, column + 1] += 1.0
        return seed

    def step(self, weights):
        """One step of the equation: gradient of the surrogate, its loss, the heat."""
        x = around(self.heat)
        moved = conduct(x)
        error = np.tensordot(weights, x, 1) - moved
        self.heat[1:-1, 1:-1] = moved
        cells = N * N
        return (x * error).sum(axis=(1, 2)) / cells, (error * error).sum() / cells, moved.sum()


class Tables:
    def __init__(self, session):
        f8 = {"dtype": np.float64, "effect": "clock_sum"}
        learning = ("adagrad", 0.05, 1e-10)
        self.model = session.table("model", "range", rows=1, cols=WEIGHTS, optimizer=learning, **f8)
        # Rows 2r and 2r + 1: top and bottom row of worker r.
        self.edges = session.table("edges", "rows", rows=2 * session.workers, cols=N, **f8)
        # Row t: loss and heat of step t.
        self.log = session.table("log", "rows", rows=STEPS, cols=2, **f8)
        self.histogram = session.table("histogram", "sparse", dtype=np.int64, cols=1)


def neighbours_by_table(strip, tables):
    if strip.rank > 0:
        tables.edges.pull([2 * strip.rank - 1], out=strip.heat[0:1, 1 : N + 1])
    if strip.rank + 1 < strip.workers:
        tables.edges.pull([2 * strip.rank + 2], out=strip.heat[-1:, 1 : N + 1])


def neighbours_by_mpi(strip, comm, nobody):
    up = strip.rank - 1 if strip.rank > 0 else nobody
    down = strip.rank + 1 if strip.rank + 1 < strip.workers else nobody
    rows = strip.rows
    comm.Sendrecv(strip.row(1), up, 0, strip.row(rows + 1), down, 0)
    comm.Sendrecv(strip.row(rows), down, 1, strip.row(0), up, 1)


def push(strip, tables, t, gradient, loss, heat):
    mine = [2 * strip.rank, 2 * strip.rank + 1]
    tickets = [
        tables.model.push(gradient, op="gradient"),
        tables.log.push(np.array([[loss, heat]]), [t]),
        tables.edges.push(np.stack([strip.row(1), strip.row(strip.rows)]), mine, op="assign"),
    ]
    for ticket in tickets:
        ticket.wait()


def rollout(weights):
    """Solver and surrogate, side by side from a smooth hill on: their largest difference."""
    side = np.arange(N + 2) / (N + 1)
    hill = side * (1.0 - side)
    solved = np.zeros((N + 2, N + 2))
    solved[1:-1, 1:-1] = 16.0 * np.outer(hill, hill)[1:-1, 1:-1]
    learnt = solved.copy()
    for _ in range(ROLLOUT):
        solved[1:-1, 1:-1] = conduct(around(solved))
        learnt[1:-1, 1:-1] = np.tensordot(weights, around(learnt), 1)
    return np.abs(solved - learnt).max()


def report(tables):
    """What the job learnt, in lines of a name and a number."""
    weights = tables.model.pull()[0]
    (first, _), (last, heat) = tables.log.pull([0, STEPS - 1])
    print(f"loss.first {first:.12e}\nloss.last {last:.12e}\nheat.last {heat:.12e}")
    for n, weight in enumerate(weights):
        print(f"weight.{n} {weight:.12e}")
    print(f"rollout.error {rollout(weights):.12e}")
    for n, count in enumerate(tables.histogram.pull(np.arange(BINS, dtype=np.uint64))[:, 0]):
        print(f"cells.{n} {count}", flush=True)


def simulate(session, neighbours):
    tables = Tables(session)
    strip = Strip(session.rank, session.workers)
    weights = np.empty(WEIGHTS)
    seed = 1
    for t in range(STEPS):
        tables.model.pull(out=weights)
        neighbours(strip, tables)
        seed = strip.light(seed)
        push(strip, tables, t, *strip.step(weights))
        session.tick()
    bins = np.minimum(strip.heat[1:-1, 1:-1] * 16.0, BINS - 1).astype(np.uint64).ravel()
    tables.histogram.push(np.ones((bins.size, 1), dtype=np.int64), bins).wait()
    session.barrier("counted", timeout=30)
    if session.rank == 0:
        report(tables)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mpi", action="store_true", help="exchange edges by mpi4py")
    if not parser.parse_args().mpi:
        with tidewater.Session(sync="bsp") as session:
            simulate(session, neighbours_by_table)
        return
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    try:
        with tidewater.Session(rank=comm.rank, workers=comm.size, sync="bsp") as session:
            simulate(session, lambda strip, _: neighbours_by_mpi(strip, comm, MPI.PROC_NULL))
    except BaseException as e:
        print(f"heat: {e}", file=sys.stderr, flush=True)
        comm.Abort(1)  # the other rank may wait in MPI for this one


if __name__ == "__main__":
    main()
