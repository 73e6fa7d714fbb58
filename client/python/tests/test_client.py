"""The Python client against a service: python test_client.py COORDINATOR TOKEN_FILE

Plain asserts and no test framework, so that a fresh environment with the wheel alone runs it.
"""

import ctypes
import itertools
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tidewater
import tidewater.data
from tidewater.metrics import EpochMetrics, Metric

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
            assert t.partitions == 64 and s.open_table("t", dtype).partitions == 64
            keys = np.array([5, 1 << 63, 5], dtype=np.uint64)
            t.push(np.arange(9, dtype=dtype).reshape(3, 3), keys).wait()
            for mode in ("consistent", "hogwild", "gather"):
                out = np.full((2, 3), 99, dtype=dtype)
                assert t.pull(keys[:2], out=out, mode=mode) is out
                assert out.tolist() == [[6, 8, 10], [3, 4, 5]], (dtype, mode, out)
            assert t.pull([5]).tolist() == [[6, 8, 10]]
            assert t.pull(np.array([5])).dtype == dtype


def _task_files():
    folder = pathlib.Path(tempfile.mkdtemp())
    for name in "abc":
        (folder / name).write_text("".join(f"1 {row + 1}:2\n" for row in range(40)))
    return folder


def test_tasks_count_each_record_once():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.float64, cols=1)
        tasks = tidewater.data.tasks(s, _task_files(), "rows", 100, batch=7, epochs=2, seed=1, finals=["end"])
        kinds, broken = [], True
        for task in tasks:
            kinds.append(task.kind)
            assert type(task.path) is str, task.path
            try:
                with task:
                    for batch in task:
                        t.push(np.ones((len(batch.keys), 1)), batch.keys)
                    if broken:
                        broken = False
                        raise ValueError("a bad batch")
            except ValueError:
                pass
        assert kinds.count("end") == 1 and set(kinds) == {"train", "end"}, kinds
        assert (t.pull(np.arange(40, dtype=np.uint64)) == 6).all(), "three files, two passes"
        status = tasks.status()
        assert status["records"] == 240 and status["failures"] == 1 and not status["reasons"], status


def test_task_is_reported_before_the_next_one():
    with session() as s:
        tasks = tidewater.data.tasks(s, 20, "q", 10)
        taken = iter(tasks)
        first, second = next(taken), next(taken)
        assert second.number == first.number, "the first one was reported as failed, and is given again"
        for call in (first.done, lambda: first.failed("why"), lambda: list(first), first.record_numbers):
            raises(ValueError, f"task {first.number} is not open any more", call)
        assert len(list(second)) == 1 and second.done()
        assert tasks.status()["records"] == 10 and tasks.status()["failures"] == 1
        third = next(taken)
        assert third.number != first.number and third.done() and next(taken, None) is None
        finals = tidewater.data.tasks(s, _task_files(), "finals", 100, finals=["save"])
        raises(ValueError, "the queue has final tasks", lambda: tidewater.data.torch_tasks(finals, columns=40))
        assert tidewater.data.tasks(s, np.int64(20), "numpy", 10).status()["tasks"] == 2


def test_feed_has_batches_over_tasks():
    with session() as s:
        finals = []
        options = dict(batch=7, exactly_once=False, finals=["end"])
        tasks = tidewater.data.tasks(s, _task_files(), "rows", 100, **options)
        raises(ValueError, "give `final`", lambda: tidewater.data.feed(tasks))
        feed = tidewater.data.feed(tasks, finals.append)
        sizes = [len(batch.labels) for batch in feed]
        assert sum(sizes) == 120 and sizes.count(7) == 17 and finals == ["end"], (sizes, finals)
        assert feed.status()["records"] == 120
        exact = tidewater.data.tasks(s, _task_files(), "exact", 100)
        raises(ValueError, "exactly_once=False", lambda: tidewater.data.feed(exact))
        raises(ValueError, "a feed has these tasks", lambda: next(iter(tasks)))


def test_final_task_comes_again_after_a_failure():
    def save(kind):
        attempts.append(kind)
        if len(attempts) == 1:
            raise OSError("no room")

    with session() as s:
        attempts = []
        tasks = tidewater.data.tasks(s, 5, "again", 5, exactly_once=False, finals=["save"])
        feed = tidewater.data.feed(tasks, save)
        raises(OSError, "no room", lambda: list(feed))
        assert feed.done() == 0 and feed.status()["finished"] == 1, "the save is not reported"
        assert list(feed) == [] and attempts == ["save", "save"], attempts
        assert feed.status()["finished"] == 2


def test_record_numbers_are_shuffled():
    with session() as s:
        tasks = tidewater.data.tasks(s, 25, "images", 10, batch=4, record_seed=7)
        numbers = []
        for task in tasks:
            with task:
                of_task = task.record_numbers()
                assert np.array_equal(np.concatenate(list(task)), of_task)
                numbers.extend(of_task.tolist())
        assert sorted(numbers) == list(range(25)) != numbers, numbers
        assert tasks.status()["records"] == 25
        options = dict(batch=7, record_seed=7, exactly_once=False)
        feed = tidewater.data.feed(tidewater.data.tasks(s, 25, "batches", 10, **options))
        batches = list(feed)
        assert [len(batch) for batch in batches] == [7, 7, 7, 4]
        assert np.concatenate(batches).tolist() == numbers
        raises(tidewater.Error, "single ones cannot", lambda: tidewater.data.tasks(s, _task_files(), "x", 9, record_seed=1))
        with next(iter(tidewater.data.tasks(s, 2**60, "huge", 2**60))) as task:
            raises(MemoryError, "make task_size smaller", task.record_numbers)


def test_tasks_without_their_file_are_left_out():
    with session() as s:
        folder = _task_files()
        tasks = tidewater.data.tasks(s, folder, "rows", 1000, failures_max=2)
        (folder / "b").unlink()
        rows = 0

        def count():
            nonlocal rows
            for task in tasks:
                try:
                    with task:
                        rows += sum(len(batch.labels) for batch in task)
                except OSError:
                    pass

        raises(tidewater.Error, "tasks of queue", count)
        assert rows == 80, rows
        raises(ValueError, "kind is", lambda: tidewater.data.tasks(s, folder, "other", 9, kind="x"))


def test_torch_takes_tasks():
    try:
        import torch
    except ImportError as e:
        print(f"not run: tasks of PyTorch: {e}")
        return
    with session() as s:
        tasks = tidewater.data.tasks(s, _task_files(), "rows", 100, batch=16)
        loader = torch.utils.data.DataLoader(tidewater.data.torch_tasks(tasks, columns=40), batch_size=None)
        assert sum(float(features.sum()) for _, features in loader) == 240
        assert tasks.status()["records"] == 120


def test_ranges_clocks_and_snapshots():
    with session(sync="bsp") as s:
        t = s.table("m", "range", dtype="f8", rows=50, cols=40, effect="clock_sum", snapshot=True)
        ticket = t.push(np.ones(100), first=1000)
        ticket.wait()
        assert ticket.done()
        s.tick()
        whole = t.pull(mode="snapshot")
        assert whole.shape == (50, 40) and whole.sum() == 100
        assert t.pull(out=np.empty(3), first=999).tolist() == [0, 1, 1]
        assert (s.clock, s.global_clock()) == (1, 1)
        assert s.counters()["ticks"] == 1
        same, pulled = t.pull_with_versions(mode="snapshot")
        assert (pulled.version, pulled.stores) == (1, None) and (same == whole).all()
        assert repr(pulled) == "Pulled(version=1, stores=None)"
        assert t.wait_newer(0) == t.wait_until(1, timeout=5) == 1
        raises(TimeoutError, 'version 2 of table "m"', lambda: t.wait_newer(1, timeout=0.02))
        kept = s.table("k", "range", dtype="i4", rows=9, cols=9, effect="clock_sum", snapshot=True, versions=3)
        version = kept.pin()
        kept.push(np.ones(81, dtype="i4")).wait()
        s.tick()
        assert kept.pull_pinned(version).sum() == 0 and kept.pull().sum() == 81
        (whole, ones), both = s.pull_group([t, kept])
        assert both == version + 1 and whole.sum() == 100 and ones.sum() == 81
        raises(tidewater.Error, "1 versions are pinned, and 1 can be", kept.pin)
        kept.unpin(version)
        raises(ValueError, "is not pinned by this client", lambda: kept.unpin(version))
        rows = s.table("r", "rows", dtype="i8", rows=4, cols=1)
        rows.push(np.ones((1, 1), dtype="i8"), [2]).wait()
        assert rows.pull_with_versions([1, 2])[1].stores == (1, 2)
        s.barrier("b", timeout=5)


def test_pulls_write_where_the_array_is():
    with session() as s:
        t = s.table("t", "range", dtype=np.float32, rows=256, cols=1024)
        t.push(np.full(256 * 1024, 3, dtype=np.float32)).wait()
        out = np.zeros((256, 1024), dtype=np.float32)
        half = out[128:]
        address = half.ctypes.data
        got = t.pull(out=half, first=128 * 1024)
        assert got is half and half.ctypes.data == address
        assert out[:128].sum() == 0 and out[128:].min() == 3, "the view's memory, and no other"


def test_rules_options_and_settings():
    with session() as s:
        t = s.table("o", "rows", dtype=np.float64, rows=2, cols=2, optimizer=("sgd", 1.0), clip_norm=5.0)
        t.push(np.array([[6.0, 8.0], [3.0, 4.0]]), [0, 1], op="gradient").wait()
        assert t.pull([0, 1]).tolist() == [[-3.0, -4.0]] * 2
        t.set_optimizer(("sgd", 0.5)).wait()
        t.push(np.array([[2.0, 2.0]]), [0], op="gradient").wait()
        assert t.pull([0]).tolist() == [[-4.0, -5.0]]
        t.push(np.array([[2.0, 2.0]]), [1], op="gradient", weight=2.0, encoding="bf16").wait()
        assert t.pull([1]).tolist() == [[-5.0, -6.0]]
        raises(ValueError, "not below 0", lambda: t.push(np.ones((1, 2)), [1], weight=-1.0))
        raises(ValueError, "encoding is 'f8'", lambda: t.push(np.ones((1, 2)), [1], encoding="f8"))
        raises(ValueError, "rule is Sgd", lambda: t.set_optimizer(("adagrad", 0.1, 1e-8)))
        raises(ValueError, "lr is 0", lambda: t.set_optimizer(("sgd", 0.0)))
        for n, rule in enumerate(
            [
                ("rmsprop", 0.1, 0.9, 1e-8),
                ("adamw", 0.1, 0.9, 0.99, 1e-8, 0.1),
                ("row_adagrad", 0.1, 1e-8),
                ("amsgrad", 0.1, 0.9, 0.99, 1e-8),
                ("adadelta", 1.0, 0.9, 1e-6),
                ("proximal_sgd", 0.1, 0.1),
                ("proximal_adagrad", 0.1, 1e-8, 0.1),
            ]
        ):
            u = s.table(f"o{n}", "sparse", dtype=np.float32, cols=2, optimizer=rule, clip_value=1.0)
            u.push(np.ones((1, 2), np.float32), [7], op="gradient").wait()
            assert (u.pull([7]) < 0).all()


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
            m = s.table("m", "range", dtype=np.int64, rows=100, cols=7)
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
        t = s.table("t", "range", dtype=np.float32, rows=4, cols=8)
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
        m = s.table("m", "range", dtype=np.int64, rows=10, cols=4)
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


def _range_table(s, name, values, dtype=np.float64):
    t = s.table(name, "range", dtype=dtype, rows=len(values), cols=1, optimizer="none", allow_not_finite=True)
    t.push(np.asarray(values, dtype=dtype), op="assign").wait()
    return t


def test_expressions_update_and_reduce_tables():
    n = 100_000
    a, b = np.arange(n, dtype=np.float64), np.linspace(-1, 1, n)
    with session() as s:
        x, y = _range_table(s, "x", a), _range_table(s, "y", b)
        s.update(y, "p0 * x + y", inputs=[x, y], parameters=[0.3]).wait()
        assert (y.pull().ravel() == 0.3 * a + b).all()
        s.update(x, "2 * x", range=range(10, 20)).wait()
        a[10:20] *= 2
        assert (x.pull().ravel() == a).all()
        s.update(x, "-1", range=(0, 1)).wait()
        a[0] = -1
        total = s.reduce(x, "x")
        assert type(total) is float and total == a.sum()
        assert s.reduce(x, "x", "min") == -1 and s.reduce(x, "x", "max") == n - 1
        assert s.reduce(x, "x * y", inputs=[x, y], range=(5, 6)) == 5 * (1.5 + b[5])
        assert s.reduce(x, "x > p0", parameters=[10]) == (a > 10).sum()
        every = s.reduce(x, "x >= -1", "and")
        assert type(every) is int and every == 1
        assert s.reduce(x, "x", "max", range=range(3, 3)) is None
        assert s.reduce(x, "x", "sum", range=range(3, 3)) == 0

        big = (1 << 53) + 1
        raises(ValueError, "9007199254740993 is no exact float", lambda: s.update(x, "x + p0", parameters=[big]))
        assert s.reduce(x, "x < p0", parameters=[big - 1]) == n
        for kind in (np.int64, np.uint64):
            raises(ValueError, "is no exact float", lambda: s.update(x, "x + p0", parameters=[kind(big)]))
            assert s.reduce(x, "x < p0", parameters=[kind(big - 1)]) == n
        assert s.reduce(x, "x < p0", parameters=[np.float32(0.5)]) == (a < 0.5).sum()
        whole = _range_table(s, "i", [big] * 1000, np.int64)
        total = s.reduce(whole, "x")
        assert type(total) is int and total == 1000 * big

        sparse = s.table("s", "sparse", dtype=np.float32, cols=2)
        sparse.push(np.ones((3, 2), np.float32), [1, 5, 1 << 60]).wait()
        s.update(sparse, "x + 1").wait()
        assert s.reduce(sparse, "x") == 12
        assert s.reduce(s.table("e", "sparse", dtype=np.float32, cols=2), "x", "min") is None


def test_wrong_functions_are_named():
    with session() as s:
        x, other = _range_table(s, "x", np.ones(10)), _range_table(s, "o", np.ones(11))
        narrow = _range_table(s, "n", np.ones(10), np.float32)
        late = s.table("l", "range", dtype="f8", rows=10, cols=1, optimizer="none", effect="clock_sum")
        raises(ValueError, "byte 4", lambda: s.update(x, "x + "))
        raises(ValueError, "byte 0: unknown name `frob`", lambda: s.reduce(x, "frob(x)"))
        raises(ValueError, "2 inputs", lambda: s.update(x, "x + y"))
        raises(ValueError, "1 parameters", lambda: s.update(x, "x + p0"))
        raises(ValueError, "\"o\"", lambda: s.update(x, "x + y", inputs=[x, other]))
        raises(ValueError, "F32", lambda: s.update(x, "x + y", inputs=[x, narrow]))
        raises(ValueError, "tick", lambda: s.update(late, "0"))
        raises(ValueError, "9..11 of 10", lambda: s.update(x, "x", range=(9, 11)))
        raises(ValueError, "range is -1 to 2", lambda: s.update(x, "x", range=(-1, 2)))
        raises(ValueError, "range is 2 to 1", lambda: s.reduce(x, "x", range=range(2, 1)))
        raises(ValueError, "step 2", lambda: s.reduce(x, "x", range=range(0, 4, 2)))
        raises(TypeError, "range(first, end)", lambda: s.reduce(x, "x", range=3))
        raises(ValueError, "reduction is 'mean'; it is one of 'sum'", lambda: s.reduce(x, "x", "mean"))
        assert (x.pull() == 1).all(), "a refused call changes nothing"
        finite = s.table("f", "range", dtype="f8", rows=4, cols=1)
        raises(tidewater.Error, "NaN", lambda: s.update(finite, "sqrt(0 - 1)").wait())
        raises(tidewater.Error, "functions", lambda: s.call_update(x, "missing", b"a").wait())
        raises(tidewater.Error, "functions", lambda: s.call_reduce(x, "missing"))
        raises(ValueError, "1 to 255 bytes", lambda: s.call_update(x, ""))
        raises(ValueError, "1 to 255 bytes", lambda: s.load_function("", b"module"))
        raises(tidewater.Error, "--load-functions", lambda: s.load_function("module", b"module"))
        raises(TypeError, "bytes", lambda: s.load_function("module", "text"))


def test_vectors_match_numpy():
    n = 40_003
    random = np.random.default_rng(1)
    for dtype in (np.float64, np.float32):
        a, b = random.uniform(-2, 2, n).astype(dtype), random.uniform(-2, 2, n).astype(dtype)
        half = dtype(0.5)
        with session() as s:
            space = tidewater.VectorSpace(s, "v", n, dtype=dtype)
            x, y = space.from_array(a), space.from_array(b)
            cases = {
                "x + y": (x + y, a + b),
                "x - y": (x - y, a - b),
                "x * y": (x * y, a * b),
                "x / y": (x / y, a / b),
                "x + 0.5": (x + 0.5, a + half),
                "0.5 + x": (0.5 + x, half + a),
                "x - 0.5": (x - 0.5, a - half),
                "0.5 - x": (0.5 - x, half - a),
                "2 * x": (2 * x, 2 * a),
                "np.float64 * x": (np.float64(2) * x, 2 * a),
                "x / 3": (x / 3, a / dtype(3)),
                "1 / x": (1 / x, dtype(1) / a),
                "-x": (-x, -a),
                "abs(x)": (abs(x), abs(a)),
                "sqrt": (abs(x).sqrt(), np.sqrt(abs(a))),
                "sign": (x.sign(), np.sign(a)),
                "minimum": (x.minimum(y), np.minimum(a, b)),
                "maximum": (x.maximum(y), np.maximum(a, b)),
                "clip": (x.clip(-1, 0.5), np.clip(a, -1, half)),
                "scaled_add": (x.scaled_add(y, 0.5), a + half * b),
                "soft": (x.soft_threshold(0.5), np.where(a > half, a - half, np.where(a < -half, a + half, 0))),
                "zeros": (x.zeros_like(), np.zeros(n)),
            }
            for name, (vector, expected) in cases.items():
                got = vector.pull()
                assert got.dtype == dtype and (got == expected).all(), (name, dtype)
            assert np.allclose((abs(x) ** 1.5).pull(), abs(a) ** 1.5) and np.allclose(x.exp().pull(), np.exp(a), 1e-6)
            z = x.copy()
            z += y
            z *= 2
            z -= x
            z /= 4
            z.axpy(2, y)
            assert (z.pull() == ((a + b) * 2 - a) / 4 + 2 * b).all()
            assert (x.pull() == a).all(), "a copy does not follow"
            z.map("x * y + p0", [x, y], [0.125])
            assert (np.asarray(z) == a * b + dtype(0.125)).all() and np.array(z, dtype="f8").dtype == np.float64
            z.map("index" if dtype is np.float64 else "x - x")
            z.fill(3)
            assert z.sum() == 3 * n
            z.push(b)
            out = np.empty(n, dtype)
            assert z.pull(out) is out and (out == b).all()
            a8, b8 = a.astype("f8"), b.astype("f8")
            tolerance = 1e-12 if dtype is np.float64 else 1e-5
            for got, expected in [
                (x @ y, a8 @ b8),
                (x.dot(y), a8 @ b8),
                (x.sum(), a8.sum()),
                (x.norm(), np.linalg.norm(a8)),
                (x.norm(1), abs(a8).sum()),
                (x.norm(np.inf), abs(a8).max()),
                (x.min(), a8.min()),
                (x.max(), a8.max()),
                (x.nnz(), n),
                (x.distance(y), abs(a - b).max()),
            ]:
                assert abs(got - expected) <= tolerance * max(abs(expected), 1) * 10, (got, expected)
            assert x.is_near(x.copy(), 1e-300) and not x.is_near(y, 1e-3)
            assert len(x) == n and x.shape == (n,) and x.dtype == dtype


def test_collected_vectors_give_their_tables_back():
    with session() as s:
        space = tidewater.VectorSpace(s, "v", 1000)
        keep, old = space.filled(1), space.filled(5)
        slot, generation = old.id
        assert space.table_of(old.id).name == f"v/{slot}"
        stale = old.id
        del old
        raises(ValueError, "was dropped", lambda: space.table_of(stale))
        for _ in range(300):
            fresh = keep.zeros_like()
            assert fresh.id[0] == slot and fresh.id[1] > generation
            generation = fresh.id[1]
            del fresh
        assert keep.zeros_like().norm(1) == 0, "nothing of the last use is left"
        raises(ValueError, "was dropped", lambda: space.table_of(stale))
        for _ in range(100):
            keep = keep * 0.5 + keep * 0.5
        assert keep.sum() == 1000 and space.usage == (1, 4), space.usage
        raises(ValueError, "1 vectors of the space", space.release)
        del keep
        space.release()
        raises(ValueError, "was released", space.zeros)
        raises(tidewater.Error, "v/0", lambda: s.open_table("v/0", np.float64))


def test_wrong_vectors_are_named():
    with session() as s:
        one, two = tidewater.VectorSpace(s, "one", 10), tidewater.VectorSpace(s, "two", 10)
        x, y = one.filled(1), two.filled(1)
        raises(ValueError, 'space "two"', lambda: x + y)
        raises(ValueError, 'space "two"', lambda: x @ y)
        raises(ValueError, 'space "two"', lambda: x.axpy(1, y))
        raises(ValueError, 'space "two"', lambda: x.map("x", [y]))
        assert one.usage[0] == 1, "a failed operation gives its slot back"
        for call in [lambda: x + np.ones(10), lambda: np.ones(10) + x, lambda: x / np.array(2.0)]:
            raises(TypeError, "VectorSpace.from_array", call)
        for call in [lambda: x + "a", lambda: x @ 2, lambda: x**x, lambda: [] - x]:
            raises(TypeError, "unsupported operand", call)
        raises(ValueError, "(9,)", lambda: one.from_array(np.ones(9)))
        raises(ValueError, "(9,)", lambda: x.push(np.ones(9)))
        raises(TypeError, "complex128", lambda: one.from_array(np.ones(10) * 1j))
        raises(ValueError, "out has shape (9,)", lambda: x.pull(np.empty(9)))
        raises(ValueError, "not int64", lambda: tidewater.VectorSpace(s, "i", 10, dtype=np.int64))
        raises(ValueError, "0 elements", lambda: tidewater.VectorSpace(s, "z", 0))
        raises(ValueError, "byte 3", lambda: x.map("x +"))
        raises(ValueError, "ord is 3", lambda: x.norm(3))
        raises(TypeError, "cannot be pickled", lambda: pickle.dumps(x))
        raises(TypeError, "cannot be pickled", lambda: pickle.dumps(one))
        assert x.sum() == 10 and y.sum() == 10
        s.call_update(one.table_of(x.id), "no_such")
        raises(tidewater.Error, "none of this name", x.norm)
        assert x.norm(1) == 10, "the refusal was raised once"
        assert np.isnan(one.filled(np.nan).soft_threshold(1).sum())


def all_workers(work, workers=2, **options):
    """Runs work(session) as each worker of a job, in threads; returns the results by rank."""
    options = {"namespace": f"python-{os.getpid()}-{next(_names)}", "workers": workers, **options}
    results, failures = [None] * workers, []

    def run(rank):
        try:
            with session(rank=rank, **options) as s:
                results[rank] = work(s)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def test_collective_calls_exchange_arrays():
    def work(s):
        mine = np.array([[s.rank, 2.5], [-1, 7]], dtype=np.float32)
        all = s.all_gather(mine)
        assert all.shape == (2, 2, 2) and all.dtype == np.float32
        assert all.tolist() == [[[0, 2.5], [-1, 7]], [[1, 2.5], [-1, 7]]]
        assert s.all_gather(np.array(s.rank + 1)).tolist() == [1, 2]
        # Longer than the first round.
        long = np.arange(1000, dtype=np.int64) * (s.rank + 1)
        assert s.all_reduce(long) is long and (long == 3 * np.arange(1000)).all()
        for op, expected in (("min", [4, -6]), ("max", [5, -5])):
            assert s.all_reduce(np.array([4 + s.rank, -5 - s.rank]), op).tolist() == expected
        for op, expected in (("product", [20, 6]), ("bit_and", [4, 2]), ("bit_or", [5, 3]), ("bit_xor", [1, 1])):
            assert s.all_reduce(np.array([4 + s.rank, 3 - s.rank]), op).tolist() == expected
        raises(tidewater.Error, "floats have no bits", lambda: s.all_reduce(np.zeros(1), "bit_or"))
        seed = np.full(3, s.rank + 7, dtype=np.int32)
        assert s.broadcast(seed, root=1) is seed and seed.tolist() == [8, 8, 8]
        assert s.broadcast(np.array([s.rank + 0.5])).tolist() == [0.5]
        raises(TypeError, "values is a list; give a numpy.ndarray", lambda: s.all_gather([1.0]))
        raises(ValueError, "dtype is 'complex128'", lambda: s.all_reduce(np.zeros(1, dtype=complex)))
        raises(ValueError, "not C-contiguous", lambda: s.all_reduce(np.zeros((4, 4))[:, 0]))
        raises(ValueError, "op is 'and'; it is one of 'sum', 'min', 'max'", lambda: s.all_reduce(np.zeros(1), "and"))
        raises(tidewater.Error, "worker 2", lambda: s.broadcast(np.zeros(1), root=2))
        raises(tidewater.Error, "all_gather", lambda: s.all_gather(np.zeros(1 + s.rank)))
        return s.all_gather(np.array([s.rank])).ravel().tolist()

    assert all_workers(work) == [[0, 1]] * 2


def test_metrics_of_all_workers_are_merged():
    def work(s):
        share = Metric([0.0, 0.0], np.add, lambda state: state[0] / state[1] if state[1] else None)
        metrics = EpochMetrics(loss="mean", records="sum", least="min", greatest="max", share=share)
        empty = metrics.merge(s, 0)["metrics"]
        assert empty == {"loss": None, "records": 0, "least": None, "greatest": None, "share": None}
        for epoch in (1, 2):
            # Means of parts of different sizes: 0 over one row, 1 over two.
            metrics.add("loss", s.rank, weight=s.rank + 1)
            metrics.add("records", 10)
            metrics.add("records", 1)
            metrics.add("least", 7 - s.rank)
            metrics.add("greatest", -7 - s.rank)
            metrics.add("share", [1, 1 + s.rank])
            raises(ValueError, "not finite", lambda: metrics.add("loss", float("nan")))
            raises(ValueError, "takes no weight", lambda: metrics.add("records", 1, weight=2))
            raises(ValueError, "at least 0", lambda: metrics.add("loss", 1, weight=-2))
            raises(ValueError, "states of 2 numbers, not 1", lambda: metrics.add("share", [1]))
            raises(KeyError, "no metric is named", lambda: metrics.add("other", 1))
            line = metrics.merge(s, epoch)
            assert line["metrics"] == {"loss": 2 / 3, "records": 22, "least": 6, "greatest": -7, "share": 2 / 3}, line
            assert (line["event"], line["epoch"], line["workers"]) == ("metrics", epoch, 2)
        other = EpochMetrics(**{f"loss{s.rank}": "mean"})
        raises(ValueError, f"worker {1 - s.rank} has other metrics", lambda: other.merge(s, 3))

    raises(ValueError, "a metric is one of sum, mean, min, max", lambda: EpochMetrics(loss="median"))
    all_workers(work)


def test_keys_are_stored_listed_and_deleted():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.float64, cols=2)
        keys = np.arange(100, dtype=np.uint64)
        t.push(np.repeat(keys, 2).reshape(100, 2).astype(float), keys).wait()
        t.delete(keys[::2]).wait()
        assert t.exists([1, 2, 1000]).tolist() == [True, False, False]
        assert t.count() == 50
        assert sorted(np.concatenate(list(t.scan(batch=7))).tolist()) == list(range(1, 100, 2))
        seen = []
        for some, rows in t.scan(batch=20, rows=True, partitions=(0, t.partitions)):
            assert (rows == some[:, None]).all()
            seen += some.tolist()
        assert sorted(seen) == list(range(1, 100, 2))
        assert t.pull([2]).tolist() == [[0, 0]]
        dense = s.table("dense", "rows", dtype=np.float64, rows=2, cols=2)
        raises(ValueError, "not sparse", lambda: dense.delete([1]))
        raises(ValueError, "batch is 0", lambda: t.scan(batch=0))


def test_pulls_finish_later():
    with session() as s:
        r = s.table("r", "range", dtype=np.float32, rows=500, cols=4)
        all = np.arange(2000, dtype=np.float32)
        r.push(all, op="assign").wait()
        t = s.table("t", "sparse", dtype=np.float64, cols=2)
        t.push(np.array([[1.0, 2.0], [3.0, 4.0]]), [7, 9]).wait()
        pulls = [r.start_pull(first=3, count=1001), r.start_pull(first=1999), r.start_pull(), t.start_pull([9, 7])]
        given_up = r.start_pull(count=10)
        given_up.cancel()
        raises(ValueError, "the pull is finished", given_up.finish)
        while not all_ready(pulls):
            pass
        assert pulls[3].finish().tolist() == [[3.0, 4.0], [1.0, 2.0]]
        out = np.full(1001, 0.5, np.float32)
        assert pulls[0].finish(out) is out and (out == all[3:1004]).all()
        raises(ValueError, "the pull is finished", lambda: pulls[0].finish(out))
        raises(ValueError, "8000 are due", lambda: pulls[2].finish(np.zeros(5, np.float32)))
        assert (pulls[2].finish() == all).all() and pulls[1].finish().tolist() == [1999.0]
        raises(ValueError, "1999+2 of a table of 2000", lambda: r.start_pull(first=1999, count=2))
        raises(ValueError, "count is of ranges", lambda: t.start_pull([1], count=1))
        raises(ValueError, "say where by first", lambda: r.start_pull([1]))


def all_ready(pulls):
    return all(pull.test() for pull in pulls)


def test_initial_values_follow_layers():
    with session() as s:
        glorot = s.table("glorot", "sparse", dtype=np.float32, cols=100, init=("xavier_uniform", 4, 2))
        assert 0.9 < np.abs(glorot.pull([1, 2, 3])).max() <= 1.0
        spread = s.table("spread", "sparse", dtype=np.float64, cols=1000, init=("xavier_normal", 4, 4))
        assert abs(spread.pull([1, 2, 3]).std() - 0.5) < 0.05
        he = s.table("he", "sparse", dtype=np.float32, cols=100, init=("kaiming_uniform", 24))
        assert 0.45 < np.abs(he.pull([1, 2, 3])).max() <= 0.5
        normal = s.table("normal", "sparse", dtype=np.float32, cols=1000, init=("kaiming_normal", 8))
        assert abs(normal.pull([1, 2, 3]).std() - 0.5) < 0.05
        for init in (("kaiming_uniform", 0), ("xavier_normal", 2, 1.5)):
            raises(ValueError, "from 1 on", lambda: s.table("no", "sparse", dtype=np.float64, cols=1, init=init))


def test_push_buffers_merge_updates():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.int64, cols=2)
        b = tidewater.PushBuffer(t)
        keys = np.array([7, 3, 7], dtype=np.uint64)
        b.add(np.array([[1, 2], [3, 4], [10, 20]]), keys)
        b.add(np.array([[100, 200]]), [7])
        assert (b.rows, b.bytes, b.table is t) == (2, 2 * 24, True)
        assert t.pull([7, 3]).tolist() == [[0, 0]] * 2, "no pull sees the buffer"
        before = s.counters()["pushes"]
        b.flush().wait()
        assert s.counters()["pushes"] == before + 1 and b.rows == 0
        assert t.pull([7, 3]).tolist() == [[111, 222], [3, 4]]
        b.add(np.array([[5, 5]]), [1])
        assert (b.clear(), b.rows) == (1, 0)
        b.flush().wait()
        assert t.pull([1]).tolist() == [[0, 0]]
        full = tidewater.PushBuffer(t, rows_max=2)
        full.add(np.ones((2, 2), np.int64), [20, 21])
        assert full.rows == 0, "it was pushed when it was full"
        full.flush().wait()
        assert t.pull([20, 21]).tolist() == [[1, 1]] * 2
        small = tidewater.PushBuffer(t, bytes_max=24)
        small.add(np.ones((1, 2), np.int64), [22])
        assert small.rows == 0

        g = s.table("g", "rows", dtype=np.float64, rows=4, cols=1, optimizer=("adagrad", 1.0, 1e-8))
        merged = tidewater.PushBuffer(g, "gradient", threshold=0.5)
        merged.add(np.array([[3.0], [0.1], [-1.0]]), [0, 1, 0])
        merged.flush().wait()
        assert merged.rows == 1 and abs(g.pull([0])[0, 0] + 1) < 1e-6, "one step of AdaGrad, for the sum"
        merged.flush_all().wait()
        assert merged.rows == 0 and abs(g.pull([1])[0, 0] + 1) < 1e-6
        merged.add(np.array([[np.nan]]), [3])
        raises(tidewater.Error, "NaN", lambda: merged.flush_all().wait())

        for op, expected in (("min", [[-4.0], [0.0]]), ("max", [[3.0], [1.0]])):
            kept = s.table(op, "sparse", dtype=np.float32, cols=1)
            extreme = tidewater.PushBuffer(kept, op)
            extreme.add(np.array([[-4.0], [1.0], [3.0]], np.float32), [5, 6, 5])
            assert extreme.rows == 2
            extreme.flush().wait()
            assert kept.pull([5, 6]).tolist() == expected, "rows begin with 0"
            kept.push(np.array([[-1.0]], np.float32), [7], op=op).wait()
            assert kept.pull([7]).tolist() == [[-1.0 if op == "min" else 0.0]]
        mean = s.table("mean", "sparse", dtype=np.float64, cols=1)
        average = tidewater.PushBuffer(mean, weight=0.25)
        average.add(np.array([[3.0], [5.0]]), [1, 1])
        average.flush().wait()
        assert mean.pull([1]).tolist() == [[2.0]]

        raises(ValueError, "op is 'assign'; a buffer merges", lambda: tidewater.PushBuffer(t, "assign"))
        raises(TypeError, "values holds float64, the table int64", lambda: b.add(np.zeros((1, 2)), [1]))
        raises(ValueError, "(1, 2)", lambda: b.add(np.zeros((1, 3), np.int64), [1]))
        ranges = s.table("r", "range", dtype=np.float64, rows=4, cols=1)
        raises(ValueError, "is by ranges; PushBuffer is for", lambda: tidewater.PushBuffer(ranges))
        raises(ValueError, "is by ranges; CachedTable is for", lambda: tidewater.CachedTable(ranges, 5))


def test_cached_rows_are_pulled_when_they_are_too_old():
    with session(sync="ssp:2") as s:
        t = s.table("t", "sparse", dtype=np.float32, cols=2)
        c = tidewater.CachedTable(t, 10)
        keys, out = np.array([7, 8, 7], dtype=np.uint64), np.zeros((3, 2), np.float32)
        assert c.pull(keys, out=out) is out
        t.push(np.ones((1, 2), np.float32), [7]).wait()
        assert c.pull(keys).tolist() == [[0, 0]] * 3, "the kept row"
        assert (c.hits, c.misses, c.rows, c.table is t) == (3, 3, 2, True)
        c.forget([7])
        assert c.pull(keys).tolist() == [[1, 1], [0, 0], [1, 1]]
        t.push(np.ones((1, 2), np.float32), [8]).wait()
        seen = []
        for _ in range(4):
            seen.append(c.pull([8])[0, 0])
            s.tick()
        assert seen == [0, 0, 0, 1], seen
        raises(TypeError, "out holds float64", lambda: c.pull(keys, out=np.zeros((3, 2))))


def test_pushes_are_added_to_cached_rows():
    with session(sync="ssp:2") as s:
        t = s.table("t", "sparse", dtype=np.float32, cols=2)
        c = tidewater.CachedTable(t, 10)
        c.pull([7])
        c.push(np.full((2, 2), 4, np.float32), [7, 8], weight=0.25).wait()
        assert c.pull([7]).tolist() == [[1, 1]] and c.rows == 1, "row 8 was not in the cache"
        assert t.pull([7, 8]).tolist() == [[1, 1], [1, 1]]
        raises(ValueError, "weight -1", lambda: c.push(np.ones((1, 2), np.float32), [7], weight=-1))
        raises(ValueError, "(1, 2)", lambda: c.push(np.ones((1, 3), np.float32), [7]))
        assert c.pull([7]).tolist() == [[1, 1]], "refused pushes have no echo"


def test_schedules_set_rates():
    Schedule = tidewater.Schedule
    cosine = Schedule.cosine(rate=1.0, last=0.01, warm_up=10, iterations=110)
    assert [cosine.at(t) for t in (0, 9, 110, 10**9)] == [0.1, 1.0, 0.01, 0.01]
    assert [Schedule.step(1.0, 0.5, every=10).at(t) for t in (0, 9, 10, 29, 30)] == [1, 1, 0.5, 0.25, 0.125]
    assert [Schedule.inverse_sqrt(1.0, warm_up=4).at(t) for t in (0, 3, 15, 63)] == [0.25, 1.0, 0.5, 0.25]
    assert Schedule.constant(0.3) == Schedule.constant(0.3) != Schedule.constant(0.4)
    raises(ValueError, "rate is 0", lambda: Schedule.constant(0.0))
    raises(ValueError, "at most rate", lambda: Schedule.cosine(0.1, 0.2, 5))
    with session() as s:
        t = s.table("t", "rows", dtype=np.float64, rows=1, cols=1, optimizer=("sgd", 1.0))
        for iteration, expected in ((0, -0.1), (9, -1.1), (110, -1.11)):
            t.schedule(cosine, iteration).wait()
            t.push(np.ones((1, 1)), [0], op="gradient").wait()
            assert abs(t.pull([0])[0, 0] - expected) < 1e-12, iteration
        u = s.table("u", "rows", dtype=np.int64, rows=1, cols=1)
        raises(ValueError, "", lambda: u.schedule(cosine, 0))


def _least_squares(rank, dim):
    """Rows and labels of a worker, and its part of the cost |x w - y|^2 / 2 with gradient."""
    rng = np.random.default_rng(rank)
    x, y = rng.normal(size=(20, dim)), rng.normal(size=20)

    def part(w):
        error = x @ w - y
        return 0.5 * error @ error, x.T @ error

    return x, y, part


def test_evaluations_by_all_workers_serve_a_solver():
    dim, workers = 6, 3

    def descend(function, w):
        """Gradient descent along lines: a quadratic has its minimum where the slope is 0."""
        for _ in range(40):
            _, gradient = function(w)
            _, beyond = function(w - gradient)
            w = w - gradient * (gradient @ gradient) / (gradient @ (gradient - beyond))
        return w

    def work(s):
        x, y, part = _least_squares(s.rank, dim)
        space = tidewater.VectorSpace(s, "fit", dim)
        e = tidewater.Evaluation(space, part)
        if s.rank > 0:
            raises(ValueError, f"this is rank {s.rank}; rank 0 evaluates", lambda: e.evaluate(np.zeros(dim)))
            e.serve()
            tidewater.Evaluation(space, part).serve()
            return x, y
        raises(ValueError, "this is rank 0, which evaluates", e.serve)
        found = [descend(e.evaluate, np.zeros(dim))]
        try:
            from scipy.optimize import minimize
        except ImportError:
            print("    not run: L-BFGS-B of scipy, which is not installed")
        else:
            found.append(minimize(e.evaluate, np.zeros(dim), jac=True, method="L-BFGS-B", tol=1e-12).x)
        passes = e.evaluations
        cost, gradient = e.evaluate(space.filled(2.0))
        again, array = e.evaluate(np.full(dim, 2.0))
        assert (cost, gradient.pull().tolist()) == (again, array.tolist()) and e.evaluations == passes + 2
        other = tidewater.VectorSpace(s, "other", dim)
        raises(ValueError, 'of the space "other"', lambda: e.evaluate(other.zeros()))
        raises(ValueError, "values have shape (5,)", lambda: e.evaluate(np.zeros(5)))
        e.finish()
        e.finish()
        raises(ValueError, "is finished", lambda: e.evaluate(np.zeros(dim)))
        # The names serve again.
        second = tidewater.Evaluation(space, part)
        assert second.evaluate(np.full(dim, 2.0))[0] == cost
        second.finish()
        return x, y, found, cost, array

    results = all_workers(work, workers)
    x, y = (np.concatenate([r[n] for r in results]) for n in (0, 1))
    exact = np.linalg.lstsq(x, y, rcond=None)[0]
    for w in results[0][2]:
        assert abs(w - exact).max() < 1e-6, (w, exact)
    error = x @ np.full(dim, 2.0) - y
    assert abs(results[0][3] - 0.5 * error @ error) < 1e-9 and abs(results[0][4] - x.T @ error).max() < 1e-9


def test_a_failed_part_is_an_error_that_names_its_worker():
    def work(s):
        def part(w):
            if s.rank == 1:
                raise ZeroDivisionError("no data")
            return 1.0, w

        e = tidewater.Evaluation(tidewater.VectorSpace(s, "v", 4), part, timeout=30)
        if s.rank == 0:
            raises(tidewater.Error, "failed at worker 1", lambda: e.evaluate(np.zeros(4)))
            e.finish()
        else:
            raises(ZeroDivisionError, "no data", e.serve)

    all_workers(work)

    def silent(s):
        e = tidewater.Evaluation(tidewater.VectorSpace(s, "v", 4), lambda w: (1.0, w), timeout=0.1)
        if s.rank == 0:
            raises(TimeoutError, "an answer of worker 1", lambda: e.evaluate(np.zeros(4)))
        s.barrier("end")

    all_workers(silent)


def test_classes_of_pytorch_say_when_it_is_missing():
    assert "torch" not in sys.modules
    try:
        import torch  # noqa: F401
    except ImportError:
        try:
            import tidewater.torch
        except ImportError as e:
            assert "pip install torch" in str(e), e
            return
        raise AssertionError("tidewater.torch is there without PyTorch")


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


def test_started_calls_are_finished_once():
    import tempfile

    with session(ring_bytes=1 << 16, memory_budget=1 << 28) as s, tempfile.TemporaryDirectory() as folder:
        t = s.table("t", "rows", dtype="f4", rows=8, cols=2)
        b = s.start_barrier("b")
        while not b.test():
            pass
        assert b.finish() is None
        raises(ValueError, "finished", b.finish)
        save = s.start_save(folder)
        assert isinstance(save, tidewater.Call)
        rows, written = save.finish()
        assert rows == 8 and written > 0
        raises(tidewater.Error, "exists", s.start_load(folder).finish)
        t.release()
        assert s.start_load(folder).finish() == ["t"]
        s.open_table("t", "f4").release()
        s.finish()
    raises(tidewater.Error, "memory_budget is 100000 bytes", lambda: session(memory_budget=100000))


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


def test_held_pushes_leave_together():
    with session() as s:
        t = s.table("held", "sparse", dtype=np.int64, cols=1)
        s.batch_pushes(8)
        for _ in range(3):
            t.push(np.ones((1, 1), np.int64), [1])
        s.flush()
        assert t.pull([1]).item() == 3
        raises(OverflowError, "out of range", lambda: s.batch_pushes(-1))


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


def test_signal_handler_inside_a_call_is_refused():
    said = []

    def use(*_):
        for call in (lambda: s.rank, lambda: s.fail("why"), s.close, s.finish, lambda: s.closed, lambda: buffer.rows):
            try:
                call()
                said.append("no error")
            except tidewater.Error as e:
                said.append(str(e))

    with session(workers=2, sync="bsp") as s:
        t = s.table("t", "sparse", dtype=np.float32, cols=1)
        buffer = tidewater.PushBuffer(t)
        before = signal.signal(signal.SIGUSR2, use)
        try:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
            raises(tidewater.Error, "1 of 2 came", lambda: s.barrier("b", timeout=5))
        finally:
            signal.signal(signal.SIGUSR2, before)
        assert len(said) == 6 and all("inside a call" in text for text in said), said
        assert s.rank == 0, "the session goes on"


def test_exit_inside_a_block_ends_a_worker_that_is_done():
    for code, fails in ((0, False), (143, False), (None, False), ("no data", True)):
        name = f"exit-{os.getpid()}-{code}"
        other = session(namespace=name, workers=2)
        try:
            with session(namespace=name, workers=2):
                sys.exit(code)
        except SystemExit as e:
            assert e.code == code
        if fails:
            raises(ConnectionError, "SystemExit: no data", lambda: other.barrier("b", timeout=20))
            other.close()
        else:
            other.table("t", "sparse", dtype=np.float32, cols=1).push(np.ones((1, 1), np.float32), [1]).wait()
            other.finish()
            other.close()


def test_dropped_pulls_give_their_places_back():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.float32, cols=1)
        t.push(np.ones((1, 1), np.float32), [1]).wait()
        for _ in range(1000):
            t.start_pull([1])
        assert t.start_pull([1]).finish().tolist() == [[1]]


def test_arrays_that_are_not_aligned_are_named():
    with session() as s:
        t = s.table("t", "sparse", dtype=np.float32, cols=1)
        odd = np.frombuffer(bytearray(9), np.float32, count=2, offset=1)
        raises(ValueError, "out is not aligned to 4 bytes", lambda: t.pull([1, 2], out=odd.reshape(2, 1)))
        raises(ValueError, "values is not aligned to 4 bytes", lambda: t.push(odd.reshape(2, 1), [1, 2]))
        keys = np.frombuffer(bytearray(17), np.uint64, count=2, offset=1)
        raises(ValueError, "keys is not aligned to 8 bytes", lambda: t.pull(keys))


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    for name, test in tests:
        test()
        print(f"ok: {name}", flush=True)
    print(f"{len(tests)} tests of Python {sys.version.split()[0]}, numpy {np.__version__}")


if __name__ == "__main__":
    _steps(*sys.argv[4:]) if sys.argv[3:4] == ["steps"] else main()
