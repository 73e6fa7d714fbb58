"""The Python client against a service: python test_client.py COORDINATOR TOKEN_FILE

Plain asserts and no test framework, so that a fresh environment with the wheel alone runs it.
"""

import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import tidewater

COORDINATOR, TOKEN = sys.argv[1:3]
_names = itertools.count()


def session(**options):
    options.setdefault("namespace", f"python-{os.getpid()}-{next(_names)}")
    options.setdefault("workers", 1)
    return tidewater.Session(COORDINATOR, TOKEN, **options)


def raises(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), f'"{e}" does not say "{words}"'
        assert type(e) is kind, type(e)
        return
    raise AssertionError(f"no {kind.__name__} that says {words}")


def test_what_is_pushed_is_what_is_pulled():
    for dtype in (np.float32, np.float64, np.int32, np.int64):
        with session() as s:
            t = s.table("t", "sparse", dtype=dtype, cols=3)
            keys = np.array([5, 1 << 63, 5], dtype=np.uint64)
            t.push(np.arange(9, dtype=dtype).reshape(3, 3), keys).wait()
            for mode in ("consistent", "hogwild", "gather"):
                out = np.full((2, 3), 99, dtype=dtype)
                assert t.pull(keys[:2], out=out, mode=mode) is out
                assert out.tolist() == [[6, 8, 10], [3, 4, 5]], (dtype, mode, out)
            assert t.pull([5]).tolist() == [[6, 8, 10]]
            assert t.pull(np.array([5])).dtype == dtype


def test_ranges_clocks_and_snapshots():
    with session(sync="bsp") as s:
        t = s.table("m", "ranges", dtype="f8", rows=50, cols=40, effect="clock_sum", snapshot=True)
        ticket = t.push(np.ones(100), first=1000)
        ticket.wait()
        assert ticket.done()
        s.tick()
        whole = t.pull(mode="snapshot")
        assert whole.shape == (50, 40) and whole.sum() == 100
        assert t.pull(out=np.empty(3), first=999).tolist() == [0, 1, 1]
        assert (s.clock, s.global_clock()) == (1, 1)
        assert s.counters()["ticks"] == 1
        s.barrier("b", timeout=5)


def test_pulls_write_where_the_array_is():
    with session() as s:
        t = s.table("t", "ranges", dtype=np.float32, rows=256, cols=1024)
        t.push(np.full(256 * 1024, 3, dtype=np.float32)).wait()
        out = np.zeros((256, 1024), dtype=np.float32)
        half = out[128:]
        address = half.ctypes.data
        got = t.pull(out=half, first=128 * 1024)
        assert got is half and half.ctypes.data == address
        assert out[:128].sum() == 0 and out[128:].min() == 3, "the view's memory, and no other"


def test_wrong_arrays_are_named():
    with session() as s:
        t = s.table("t", "rows", dtype=np.float32, rows=10, cols=4)
        keys = np.array([1, 2], dtype=np.uint64)
        good = np.zeros((2, 4), dtype=np.float32)
        pull = lambda out: t.pull(keys, out=out)
        raises(TypeError, "out holds float64, the table float32", lambda: pull(good.astype("f8")))
        raises(TypeError, "foreign byte order", lambda: pull(good.astype(">f4")))
        raises(TypeError, "out is a list", lambda: pull([[0.0] * 4] * 2))
        raises(ValueError, "(2, 5)", lambda: pull(np.zeros((2, 5), np.float32)))
        raises(ValueError, "(8,)", lambda: pull(np.zeros(8, np.float32)))
        raises(ValueError, "not C-contiguous", lambda: pull(np.asfortranarray(good)))
        raises(ValueError, "not C-contiguous", lambda: pull(np.zeros((4, 4), np.float32)[::2]))
        frozen = good.copy()
        frozen.flags.writeable = False
        raises(ValueError, "out is read-only", lambda: pull(frozen))
        t.push(frozen, keys).wait()
        raises(ValueError, "say which by keys", lambda: t.pull(out=good))
        raises(ValueError, "keys are integers", lambda: t.pull([-1]))
        raises(ValueError, "one dimension", lambda: t.pull(keys.reshape(1, 2)))
        raises(ValueError, "past the end", lambda: t.pull([10]))
        raises(ValueError, "op is 'add'; it is one of 'sum'", lambda: t.push(good, keys, op="add"))
        nan = np.full((2, 4), np.nan, dtype=np.float32)
        raises(tidewater.Error, "NaN", lambda: t.push(nan, keys).wait())
        s.flush()
        for complete in [s.flush, lambda: s.barrier("b"), s.finish]:
            t.push(nan, keys)
            raises(tidewater.Error, "NaN", complete)
        s.flush()
        raises(ValueError, "dtype is 'float16'", lambda: s.open_table("t", np.float16))
        raises(ValueError, "'adagrad' with 1 numbers", lambda: s.table("u", "rows", dtype="f4", rows=1, cols=1, optimizer=("adagrad", 1)))


class Tensor:
    """Another library's tensor, over an array of numpy's: with the older protocol, or with version 1."""

    def __init__(self, array, versioned=True, device=(1, 0)):
        self.array, self.device = array, device
        if not versioned:
            self.__class__ = OldTensor

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


class OldTensor(Tensor):
    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


VERSIONED = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)


def test_tensors_by_dlpack_are_not_copied():
    for versioned in (False, True)[: 1 + VERSIONED]:
        with session() as s:
            t = s.table("t", "rows", dtype=np.float32, rows=10, cols=4)
            m = s.table("m", "ranges", dtype=np.int64, rows=100, cols=7)
            array = np.arange(8, dtype=np.float32).reshape(2, 4)
            t.push(Tensor(array, versioned), [3, 4]).wait()
            into = np.zeros((4, 4), dtype=np.float32)
            out = Tensor(into[1:3], versioned)
            assert t.pull([3, 4], out=out) is out
            assert into[1:3].tolist() == array.tolist() and into[0].sum() + into[3].sum() == 0
            whole = np.arange(700)
            m.push(Tensor(whole, versioned), op="assign").wait()
            back = np.zeros(600, dtype=np.int64)
            m.pull(out=Tensor(back, versioned), first=100)
            assert (back == whole[100:]).all()
            m.pull(out=Tensor(np.zeros((0, 3), dtype=np.int64), versioned))
            assert (np.from_dlpack(Tensor(back, versioned)) == back).all(), "the stand-in is a producer"


def test_wrong_tensors_are_named():
    with session() as s:
        t = s.table("t", "rows", dtype=np.float32, rows=10, cols=4)
        keys = np.array([1, 2], dtype=np.uint64)
        good = np.zeros((2, 4), dtype=np.float32)
        pull = lambda array, **options: t.pull(keys, out=Tensor(array, **options))
        raises(TypeError, "out holds float64, the table float32", lambda: pull(good.astype("f8")))
        raises(TypeError, "out holds int32", lambda: pull(good.astype("i4")))
        raises(TypeError, "values holds complex64", lambda: t.push(Tensor(good.astype("c8")), keys))
        raises(ValueError, "(2, 5)", lambda: pull(np.zeros((2, 5), np.float32)))
        raises(ValueError, "not C-contiguous", lambda: pull(np.asfortranarray(good)))
        raises(ValueError, "not C-contiguous", lambda: pull(np.zeros((4, 4), np.float32)[::2]))
        raises(ValueError, "out is on CUDA device 1", lambda: pull(good, device=(2, 1)))
        raises(ValueError, "values is on Metal device 0", lambda: t.push(Tensor(good, device=(8, 0)), keys))
        if VERSIONED:
            frozen = good.copy()
            frozen.flags.writeable = False
            raises(ValueError, "out is read-only", lambda: pull(frozen))
            t.push(Tensor(frozen), keys).wait()
        both = np.zeros(4, dtype=np.uint64)
        both[:2] = 1, 2
        raises(ValueError, "out overlaps keys", lambda: t.pull(both[:2], out=Tensor(both.view(np.float32).reshape(2, 4))))
        odd = Tensor(good)
        odd.__class__ = type("Odd", (Tensor,), {"__dlpack__": lambda self, **_: 7})
        raises(TypeError, "capsule", lambda: t.pull(keys, out=odd))


class _Struct(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]


class Lying:
    """A producer whose struct says what it likes."""

    def __init__(self, array, lengths, name=b"dltensor", **told):
        self.array, self.name = array, name
        self.shape = (ctypes.c_int64 * max(len(lengths), 1))(*lengths)
        usual = {"data": array.ctypes.data, "device": (1, 0), "ndim": len(lengths), "code": 2, "bits": 32, "lanes": 1}
        usual["shape"] = ctypes.addressof(self.shape)
        self.struct = _Struct(**{**usual, **told})

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.struct), self.name, None)


def test_tensors_that_cannot_be_are_refused():
    with session() as s:
        t = s.table("t", "ranges", dtype=np.float32, rows=4, cols=8)
        array = np.ones(32, dtype=np.float32)
        t.push(Lying(array, (4, 8)), op="assign").wait()
        assert t.pull().sum() == 32
        push = lambda *given, **told: t.push(Lying(array, *given, **told))
        raises(ValueError, "[4, -8]", lambda: push((4, -8)))
        raises(ValueError, "its shape is", lambda: push((1 << 62, 1 << 62)))
        raises(ValueError, "its shape is", lambda: push((1 << 61,)))
        raises(ValueError, "-1 dimensions", lambda: push((8,), ndim=-1))
        raises(ValueError, "2000000000 dimensions", lambda: push((8,), ndim=2000000000))
        raises(ValueError, "it has no shape", lambda: push((8,), shape=None))
        raises(ValueError, "it has no memory", lambda: push((8,), data=None))
        raises(ValueError, "it has no memory", lambda: push((8,), byte_offset=(1 << 64) - 1))
        raises(ValueError, "not aligned to 4 bytes", lambda: push((7,), byte_offset=2))
        raises(ValueError, "CUDA", lambda: push((8,), device=(2, 0)))
        raises(TypeError, "float32x4", lambda: push((8,), lanes=4))
        raises(TypeError, "DLPack type 17", lambda: push((8,), code=17))
        raises(ValueError, "", lambda: push((8,), name=b"something"))
        assert t.pull().sum() == 32, "nothing was pushed"


def test_a_walltime_that_is_over_ends_all_workers_at_one_step():
    for sync, number in (("bsp", signal.SIGUSR1), ("ssp:2", signal.SIGTERM), ("asp", signal.SIGTERM)):
        name = f"walltime-{os.getpid()}-{next(_names)}"
        program = [sys.executable, __file__, COORDINATOR, TOKEN, "steps", name, sync]
        # Who is told looks last at each step: the others are past it already.
        each = [program + [pause] for pause in ("0.02", "0")]
        workers = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in each]
        try:
            for worker in workers:
                assert worker.stdout.readline() == "stepping\n"
            workers[0].send_signal(number)
            told = [worker.communicate(timeout=60)[0].split() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        assert [worker.returncode for worker in workers] == [128 + number] * 2, (sync, told)
        assert sync == "asp" or told[0] == told[1], (sync, told)


def _steps(name, sync, pause):
    """A worker of the test above: steps until it is told to end."""
    options = {"namespace": name, "sync": sync, "timeout": 20, "clock_timeout": 20}
    with tidewater.Session(COORDINATOR, TOKEN, workers=2, **options) as s:
        walltime = tidewater.Walltime(s)
        n = 0
        while not walltime.over():
            s.tick()
            n += 1
            if n == 5:
                print("stepping", flush=True)
            time.sleep(float(pause))
        ended = walltime.end()
        assert walltime.over() and walltime.end() == ended
        print(n)
    sys.exit(128 + ended)


def test_signals_are_the_programs_but_while_it_watches():
    script = """
import os, signal, sys, tidewater
with tidewater.Session(sys.argv[1], sys.argv[2], namespace=sys.argv[3], workers=1) as s:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    noted = []
    signal.signal(signal.SIGUSR1, lambda *_: noted.append(1))
    for _ in range(2):
        walltime = tidewater.Walltime(s)
        assert not walltime.over()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert walltime.over() and walltime.end() == signal.SIGUSR1
        del walltime
    os.kill(os.getpid(), signal.SIGUSR1)
    assert noted == [1] * 3, noted
print("alive", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still alive")
"""
    name = f"signals-{os.getpid()}-{next(_names)}"
    program = [sys.executable, "-c", script, COORDINATOR, TOKEN, name]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "alive\n"), done


def test_wrong_keys_places_and_tables_are_named():
    with session() as s:
        t = s.table("t", "rows", dtype=np.float32, rows=10, cols=4)
        m = s.table("m", "ranges", dtype=np.int64, rows=10, cols=4)
        good, range_ = np.zeros((2, 4), np.float32), np.zeros(4, np.int64)
        raises(TypeError, "values is a NoneType", lambda: t.push(None, [1, 2]))
        raises(TypeError, "values holds bool", lambda: t.push(good.astype(bool), [1, 2]))
        raises(TypeError, "values holds object", lambda: t.push(good.astype(object), [1, 2]))
        raises(TypeError, "out holds [('a', '<f4', (4,))]", lambda: t.pull([1, 2], out=np.zeros(2, [("a", "f4", 4)])))
        raises(ValueError, "(1, 2, 4)", lambda: t.push(good.reshape(1, 2, 4), [1, 2]))
        for keys in (np.array([1.5, 2]), "ab", 3, [1 << 64], np.array([-1]), np.array([True, False]), [None]):
            raises(ValueError, "keys are integers from 0 to 2**64 - 1", lambda: t.pull(keys))
        raises(ValueError, "keys has shape ()", lambda: t.pull(np.array(3, dtype=np.uint64)))
        assert t.pull(np.arange(6, dtype=np.uint64)[::2]).shape == (3, 4) and t.pull([]).shape == (0, 4)
        keys = np.array([1, 2], dtype=np.uint64)
        counts = s.table("c", "sparse", dtype=np.int64, cols=1)
        raises(ValueError, "out is in use", lambda: counts.pull(keys, out=keys.view(np.int64)))
        raises(ValueError, "elements 38+4 of a table of 40", lambda: m.pull(out=range_, first=38))
        raises(ValueError, "first is -1", lambda: m.push(range_, first=-1))
        raises(ValueError, "not by keys", lambda: m.pull([1]))
        raises(ValueError, "snapshots are of ranges", lambda: t.pull([1], mode="snapshot"))
        raises(ValueError, "timeout is NaN", lambda: t.pull([1], timeout=float("nan")))
        raises(ValueError, "domain is 300", lambda: s.tick(300))
        raises(ValueError, "rows of 0 elements", lambda: s.table("u", "rows", dtype="f4", rows=1, cols=0))
        raises(ValueError, "kind is 'row'", lambda: s.table("u", "row", dtype="f4", rows=1, cols=1))
        raises(TypeError, "dtype is None", lambda: s.table("u", "rows", dtype=None, rows=1, cols=1))
        raises(ValueError, "control characters", lambda: s.save("a\0b"))
        t.release()
        raises(ValueError, "released", lambda: t.pull([1]))


def test_closed_and_unreachable_sessions_say_so():
    s = session()
    t = s.table("t", "rows", dtype=np.float32, rows=10, cols=4)
    good = np.zeros((2, 4), np.float32)
    ticket = t.push(good, [1, 2])
    s.finish()
    s.close()
    s.close()
    calls = [s.tick, s.flush, s.progress, s.finish, s.counters, ticket.wait, ticket.done, t.release, lambda: s.rank]
    calls += [lambda: t.pull([1]), lambda: t.push(good, [1, 2]), lambda: s.open_table("t", "f4"), lambda: s.barrier("b")]
    calls += [lambda: s.fail("why"), lambda: s.save("a"), lambda: tidewater.Walltime(s)]
    for call in calls:
        raises(tidewater.Error, "the session is closed", call)
    raises(ConnectionError, "127.0.0.1:1", lambda: tidewater.Session("127.0.0.1:1", TOKEN, join_timeout=0.2))
    raises(tidewater.Error, "token_file", lambda: tidewater.Session(COORDINATOR))
    raises(tidewater.Error, "tidewater run", tidewater.Session)


def test_other_threads_run_while_a_call_waits():
    with session() as s:
        ran = []
        waits = threading.Thread(target=lambda: ran.append(s.barrier("b", timeout=5)))
        alone = session(workers=2, namespace=f"alone-{os.getpid()}")
        started = time.monotonic()
        late = threading.Thread(target=lambda: raises(tidewater.Error, "1 of 2", lambda: alone.barrier("b", timeout=1.0)))
        late.start()
        count = 0
        while late.is_alive():
            count += 1  # with the lock held by the wait, this would not count
        assert time.monotonic() - started > 0.5 and count > 10_000, count
        waits.start()
        waits.join()
        assert ran == [None]
        alone.finish()


def _child(s, t, results):
    for call in (lambda: s.tick(), lambda: t.pull([1]), lambda: s.close()):
        try:
            call()
            results.put("did it")
        except tidewater.ForkedError:
            results.put("refused")


def test_a_forked_child_is_refused_and_the_parent_goes_on():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.int64, cols=1)
        t.push(np.ones((1, 1), np.int64), [1]).wait()
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=_child, args=(s, t, results))
        child.start()
        assert [results.get(timeout=20) for _ in range(3)] == ["refused"] * 3
        child.join(20)
        assert child.exitcode == 0
        t.push(np.ones((1, 1), np.int64), [1]).wait()
        assert t.pull([1]).item() == 2


def _pushes(t, key):
    t.push(np.ones((1, 1), np.int64), [key]).wait()
    return t.session.rank


def test_tables_and_sessions_are_pickled_as_what_they_were_opened_with():
    with session(workers=2) as s:
        t = s.table("t", "sparse", dtype=np.int64, cols=1)
        data = pickle.dumps((s, t))
        secret = open(TOKEN).read().strip()
        assert secret.encode() not in data and bytes.fromhex(secret) not in data
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            ranks = pool.starmap(_pushes, [(t, 7), (t, 7)])
        assert ranks[0] == ranks[1] != s.rank, "one session in the other process, of another worker"
        assert t.pull([7]).item() == 2


def test_a_restored_session_that_was_closed_is_opened_again():
    with session(workers=3) as s:
        t = s.table("t", "sparse", dtype=np.int64, cols=1)
        data = pickle.dumps((s, t))
        for count in (1, 2):
            with pickle.loads(data)[0] as again:
                assert not again.closed and again.rank != s.rank
                again.open_table("t", np.int64).push(np.ones((1, 1), np.int64), [7]).wait()
            assert again.closed
            assert t.pull([7]).item() == count
        assert not s.closed


def test_ctrl_c_ends_a_call_that_waits():
    with session(workers=2, sync="bsp", clock_timeout=60) as s:
        waits = [lambda: s.barrier("b", timeout=60), lambda: [s.tick() for _ in range(3)]]
        for wait in waits:
            timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            started = time.monotonic()
            try:
                wait()
                raise AssertionError("it waits for nobody")
            except KeyboardInterrupt:
                assert time.monotonic() - started < 20, "it was noticed at the call's end"
            timer.join()
        assert s.counters()["ticks"] >= 0, "the session goes on"


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    for name, test in tests:
        test()
        print(f"ok: {name}", flush=True)
    print(f"{len(tests)} tests of Python {sys.version.split()[0]}, numpy {np.__version__}")


if __name__ == "__main__":
    _steps(*sys.argv[4:]) if sys.argv[3:4] == ["steps"] else main()
