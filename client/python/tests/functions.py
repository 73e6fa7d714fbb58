"""Functions by name from Python: python functions.py COORDINATOR TOKEN_FILE

The servers are those of client/tidewater/examples/functions.rs.
"""

import struct
import sys

import numpy as np

import tidewater

N = 100_000

with tidewater.Session(*sys.argv[1:3], namespace="functions-python", workers=1) as s:
    x = s.table("x", "range", dtype=np.float64, rows=N, cols=1)
    s.update(x, "index")
    s.call_update(x, "scale", struct.pack("<d", 0.5)).wait()
    assert (x.pull().ravel() == np.arange(N) / 2).all()
    s.call_update(x, "scale", struct.pack("<d", 4), range=(10, 20)).wait()
    assert x.pull().ravel()[9:21].tolist() == [4.5, *range(20, 40, 2), 10]
    pieces = [struct.unpack("<QQ", piece) for piece in s.call_reduce(x, "scale")]
    assert len(pieces) > 1 and all(type(piece) is bytes for piece in s.call_reduce(x, "scale"))
    following = 0
    for first, count in pieces:
        assert first == following, pieces
        following += count
    assert following == N
    try:
        s.call_update(x, "scale", b"short").wait()
        raise AssertionError("five bytes are no factor")
    except tidewater.Error as e:
        assert "number 1" in str(e), e
    s.flush()
