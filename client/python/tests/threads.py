"""Threads of a worker, each with a session of its own: the same program as
client/tidewater/examples/threads.rs, where it is explained, and the same bits.

    tidewater run --servers 2 --workers 2 -- python threads.py 2
"""

import sys
import threading

import numpy as np

import tidewater

ITERATIONS, ROWS = 20, 8


def tables(session, threads):
    mean = session.table(
        "mean", "rows", dtype=np.float32, rows=ROWS, cols=1, optimizer=("sgd", 0.5), effect="clock_mean"
    )
    counts = session.table("counts", "rows", dtype=np.int64, rows=session.workers * threads, cols=1)
    return mean, counts


def gradient(number, iteration, row):
    value = (number * 7919 + iteration * 104729 + row * 31) % 2003
    size = 1 << (2 * ((number * 5 + iteration * 3 + row) % 5))
    return np.float32((value - 1001) * size) / np.float32(3)


def work(session, threads):
    mean, counts = tables(session, threads)
    number = session.rank * threads + session.thread
    keys, own = np.arange(ROWS, dtype=np.uint64), np.array([number], dtype=np.uint64)
    for iteration in range(ITERATIONS):
        mean.pull(keys)
        gradients = [[gradient(number, iteration, row)] for row in range(ROWS)]
        mean.push(np.array(gradients, dtype=np.float32), keys, op="gradient")
        counts.push(np.array([[1]], dtype=np.int64), own)
        session.tick()
    session.flush()


def main():
    threads = int(sys.argv[1])
    with tidewater.Session(sync="bsp", join_timeout=30) as first:
        failed = []

        def follow(sibling):
            try:
                with sibling:
                    work(sibling, threads)
            except Exception as error:  # the first thread raises it
                failed.append(error)

        siblings = [first.sibling() for _ in range(1, threads)]
        assert [s.thread for s in siblings] == list(range(1, threads))
        running = [threading.Thread(target=follow, args=(s,)) for s in siblings]
        for thread in running:
            thread.start()
        work(first, threads)
        for thread in running:
            thread.join()
        if failed:
            raise failed[0]
        first.barrier("all have finished", 60)
        if first.rank == 0:
            mean, counts = tables(first, threads)
            values = mean.pull(np.arange(ROWS, dtype=np.uint64))[:, 0]
            for row, bits in enumerate(values.copy().view(np.uint32)):
                print(f"value.{row} {bits:08x}")
            for number, count in enumerate(counts.pull(np.arange(first.workers * threads, dtype=np.uint64))[:, 0]):
                print(f"count.{number} {count}")


main()
