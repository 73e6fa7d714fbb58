"""tidewater.data: python test_data.py. Needs no service; the dataset of PyTorch is tested where torch is."""

import gzip
import pathlib
import pickle
import struct
import sys
import tempfile

import numpy as np

import tidewater.data
from tidewater.data import open as open_data

LINES = [f"{n} {n % 3 + 1}:{n}.5 {n + 10}:1" for n in range(50)]


def folder():
    path = pathlib.Path(tempfile.mkdtemp())
    (path / "part-0").write_text("\n".join(LINES[:20]))
    (path / "part-1.gz").write_bytes(gzip.compress("\n".join(LINES[20:]).encode()))
    return path


def raises(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind.__name__} with {words!r}")


def labels(reader):
    return [int(label) for batch in reader for label in batch.labels]


def test_batches_are_the_rows_of_all_files():
    path = folder()
    for name in (path, f"{path}/part-*"):
        batches = list(open_data(name, batch=7))
        assert [len(b.labels) for b in batches] == [7] * 7 + [1]
        label, keys, values = batches[1].row(2)
        assert (label, keys.tolist(), values.tolist()) == (9, [0, 18], [9.5, 1])
        types = [a.dtype for a in batches[0]]
        assert types == [np.float32, np.int64, np.uint64, np.float32], types
    reader = open_data(path, batch=7)
    assert labels(reader) == labels(reader) == list(range(50)), "a second pass reads the files again"
    joined = [labels(open_data(path, part=part, parts=3)) for part in range(3)]
    assert sum(joined, []) == list(range(50)) and all(joined)
    halves = [labels(reader.part(0, 2).part(part, 3)) for part in range(3)]
    assert sum(halves, []) == labels(reader.part(0, 2))
    assert labels(pickle.loads(pickle.dumps(reader))) == list(range(50))
    dense = next(iter(open_data(path, batch=2))).dense(11)
    assert dense.shape == (2, 11) and dense[1, 1] == 1.5 and dense[1, 10] == 1 and dense.sum() == 4.0
    raises(ValueError, "not below 10", lambda: next(iter(open_data(path, batch=2))).dense(10))


def test_formats_labels_and_schemas():
    path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    path.write_text('y,x,name\n1,0.5,"a,\nb"\n2,,c\n')
    schema = "header y:label x:number name:category"
    (batch,) = open_data(path, schema=schema)
    assert batch.starts.tolist() == [0, 2, 3] and batch.values.tolist() == [0.5, 1, 1]
    (batch,) = open_data(path, "csv", schema=schema, positive=2)
    assert batch.labels.tolist() == [0, 1]
    raises(ValueError, "no data format", lambda: list(open_data(path, "xml")))
    raises(ValueError, "needs a schema", lambda: list(open_data(path, "csv")))
    for mapping, mapped in (("above:1", [0, 1]), ("above:2", [0, 0]), ("sign:1", [-1, 1]), ("shift:-1", [0, 1])):
        (batch,) = open_data(path, schema=schema, labels=mapping)
        assert batch.labels.tolist() == mapped, (mapping, batch.labels)
    raises(ValueError, "`b` is no mapping of labels", lambda: list(open_data(path, labels="b")))
    raises(ValueError, "give one of them", lambda: list(open_data(path, labels="above:1", positive=2)))
    raises(ValueError, "labels of a two-class set", lambda: list(open_data(path, schema=schema, labels="binary")))


def test_bad_records_and_files_are_named():
    path = folder()
    bad = path / "part-2"
    bad.write_text("1 1:1\nx\n")
    raises(ValueError, f"{bad}:2:1: found `x`", lambda: list(open_data(path)))
    reader = open_data(path, bad_records="skip:0.1")
    assert len(labels(reader)) == 51 and reader.skipped == 1
    raises(ValueError, "1 of 52 records are malformed", lambda: list(open_data(path, bad_records="skip:0.01")))
    raises(ValueError, "is no policy", lambda: list(open_data(path, bad_records="skip")))
    raises(OSError, "cannot open", lambda: list(open_data(path / "none")))
    raises(ValueError, "there is no part 3 of 3", lambda: list(open_data(path, part=3, parts=3)))
    raises(ValueError, "batch is 0", lambda: open_data(path, batch=0))


def test_records_are_bytes():
    path = pathlib.Path(tempfile.mkdtemp()) / "a.rec"
    records = [b"abc", b"", b"\x00\n\xff"]
    with path.open("wb") as out:
        for record in records:
            padding = b"\0" * (-len(record) % 4)
            out.write(struct.pack("<II", 0xCED7230A, len(record)) + record + padding)
    assert list(tidewater.data.records(path)) == records
    parts = [list(tidewater.data.records(path, part=part, parts=2)) for part in range(2)]
    assert sum(parts, []) == records and all(parts)
    path.write_bytes(path.read_bytes()[:-1])
    raises(ValueError, "damaged at byte 20", lambda: list(tidewater.data.records(path)))


def test_torch_reads_each_row_once():
    try:
        import torch
    except ImportError as e:
        print(f"not run: a dataset of PyTorch: {e}")
        return
    reader = open_data(folder(), batch=4)
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(
            tidewater.data.torch_dataset(reader, columns=60), batch_size=None, num_workers=workers
        )
        seen = sorted(int(label) for labels, dense in loader for label in labels)
        assert seen == list(range(50)), seen
    labels, sparse = next(iter(tidewater.data.torch_dataset(reader)))
    assert sparse.to_dense()[3].tolist()[0] == 3.5 and sparse.shape == (4, 13)


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    for name, test in tests:
        test()
        print(f"ok: {name}", flush=True)
    print(f"{len(tests)} tests of Python {sys.version.split()[0]}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
