"""tidewater.jobs: python test_jobs.py. Needs the programs tidewater and tidewater-train in PATH."""

import pathlib
import subprocess
import sys
import tempfile
import time

from tidewater.jobs import Job, JobError, StateError


def raises(kind, words, call):
    try:
        call()
    except kind as e:
        assert words in str(e), e
        return
    raise AssertionError(f"no {kind.__name__} with {words!r}")


def generate(folder, name, rows, first):
    subprocess.run(
        ["tidewater-train", "generate", "--features", "200", "--rows", str(rows), "--first", str(first)]
        + ["--out", str(folder / name)],
        check=True,
    )
    return folder / name


def test_calls_in_order_and_out_of_order(folder):
    train, test = generate(folder, "train", 2000, 0), generate(folder, "test", 500, 2000)
    with Job(servers=1, workers=2) as job:
        raises(StateError, "no model; load one", lambda: job.save(folder / "early"))
        raises(StateError, "does not train", job.wait)
        raises(StateError, "does not train", job.stop)
        job.start("lr", train=train, test=test, evaluate_every="1epoch", epochs=2)
        raises(StateError, "the job trains", lambda: job.evaluate(test))
        figures = job.wait()
        assert figures["rows"] == 4000 and figures["auc"] > 0.7, figures
        events = [line["event"] for line in job.events()]
        assert events == ["evaluation", "epoch"] * 2, events
        found = job.evaluate(test)
        assert found["log_loss"] == figures["log_loss"], (found, figures)
        job.predict(test, out=folder / "out", merge=folder / "merged")
        lines = (folder / "merged").read_text().splitlines()
        assert len(lines) == 500 and all(0 <= float(line) <= 1 for line in lines)
        raises(JobError, "which is no output of this prediction", lambda: job.predict(train, out=folder / "out"))
        job.save(folder / "model")
        raises(FileExistsError, "name a new directory", lambda: job.save(folder / "model"))
    raises(StateError, "closed", lambda: job.evaluate(test))
    with Job() as job:
        raises(FileNotFoundError, "no saved model", lambda: job.load(folder))
        job.load(folder / "model")
        assert job.evaluate(test)["log_loss"] == figures["log_loss"]


def test_a_stopped_training_keeps_its_model(folder):
    train = folder / "train"
    with Job(workers=2) as job:
        job.start("lr", train=train, epochs=1_000_000)
        until = time.monotonic() + 60
        while not any(line["event"] == "epoch" for line in job.events()):
            assert time.monotonic() < until
            time.sleep(0.05)
        job.stop()
        assert job.wait(60) is None
        assert job.evaluate(train)["rows"] == 2000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        test_calls_in_order_and_out_of_order(pathlib.Path(scratch))
        test_a_stopped_training_keeps_its_model(pathlib.Path(scratch))
    print("ok", file=sys.stderr)
