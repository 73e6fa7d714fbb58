"""Jobs of tidewater-train: create, load, train, wait, evaluate, predict, save, stop.

    from tidewater.jobs import Job
    with Job(servers=2, workers=4) as job:
        job.start("lr", train="train.libsvm", test="test.libsvm", evaluate_every="1epoch")
        figures = job.wait()                              # a dict: auc, log_loss, rows_per_second ...
        job.evaluate("new.libsvm")["log_loss"]
        job.predict("new.libsvm", out="predictions", merge="predictions.txt")
        job.save("model")

Each step is a job of processes, `tidewater train`, `evaluate` or `predict`; between them the model is in files.
Keywords are the flags of the program: evaluate_every="1epoch" is --evaluate-every 1epoch. A call that does not fit
the state of the job is a StateError that names the calls that do.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

from ._program import find

__all__ = ["Job", "JobError", "StateError"]

#: Exit code of a training that `stop` ended.
STOPPED = 128 + 15


class JobError(RuntimeError):
    """A program failed; `code` is its exit code, the text its last lines of stderr."""

    def __init__(self, command, code, stderr):
        self.code = code
        lines = stderr.strip().splitlines()[-8:]
        super().__init__(f"{command} ended with code {code}: " + "\n".join(lines))


class StateError(RuntimeError):
    """The call does not fit the state of the job, which is unchanged."""


class Job:
    """A training job of processes on this host, or on those of `hostfile`.

    `program` is the path of `tidewater`, by default that of this installation, or of PATH; tidewater-train is in the
    same directory. `work` is the directory of the job's model and logs, which servers and workers see; by default a temporary one.
    """

    def __init__(self, servers=1, workers=1, *, program=None, work=None, **options):
        self._program = find() if program is None else shutil.which(program)
        if self._program is None:
            raise FileNotFoundError(f"{program}: no such program; install it, or give its path as `program`")
        self._options = ["--servers", str(servers), "--workers", str(workers), *flags(options)]
        self._temporary = work is None
        self._work = pathlib.Path(tempfile.mkdtemp(prefix="tidewater-") if work is None else work).absolute()
        self._work.mkdir(parents=True, exist_ok=True)
        self._process = None
        self._stderr = None
        self._model = None
        self._runs = 0
        self._closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def load(self, model):
        """Uses a saved model, which a training continues. The job must have none."""
        self._idle("load")
        if self._model is not None:
            raise StateError("load: the job has a model; create another job for another model")
        model = pathlib.Path(model).absolute()
        if not (model / "manifest.json").is_file():
            raise FileNotFoundError(f"{model}: no saved model: it has no manifest.json")
        self._model = model

    def start(self, kind="lr", *, train, **options):
        """Begins to train (`lr` or `ftrl`) and returns; `wait` waits. The job's model is continued."""
        self._idle("start")
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        self._folder = folder
        options = {"log": folder / "log.jsonl", **options}
        arguments = [kind, "--train", str(train), "--save", str(folder / "model"), "--json", str(folder / "report.json")]
        if self._model is not None:
            arguments += ["--load", str(self._model)]
        self._log = pathlib.Path(options["log"])
        self._stderr = open(folder / "stderr", "w+")
        command = [self._program, "train", *self._options, "--job-file", str(self._job_file), *arguments, *flags(options)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self._stderr)

    def stop(self, reason="the program stops the job"):
        """Asks the training to end at a common step of its workers, with its model; `wait` returns None then."""
        self._training("stop")
        self._run(["stop", "--job-file", str(self._job_file), "--reason", reason])

    def wait(self, timeout=None):
        """Waits for the training. Returns its figures, or None after `stop`. subprocess.TimeoutExpired leaves
        the training as it is."""
        self._training("wait")
        code = self._process.wait(timeout)
        self._process = None
        self._stderr.seek(0)
        stderr = self._stderr.read()
        self._stderr.close()
        if code not in (0, STOPPED):
            raise JobError("tidewater train", code, stderr)
        self._model = self._folder / "model"
        return None if code == STOPPED else json.loads((self._folder / "report.json").read_text())

    def events(self):
        """The lines of the last training's log: epochs and evaluations."""
        if not self._runs:
            raise StateError("events: no training was started; call start before")
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def evaluate(self, data, **options):
        """Evaluates the model; returns the figures."""
        model = self._has_model("evaluate")
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            log = pathlib.Path(folder) / "evaluation.jsonl"
            arguments = ["--load", str(model), "--data", str(data), "--log", str(log)]
            self._run(["evaluate", *self._options, *arguments, *flags(options)])
            return json.loads(log.read_text().splitlines()[-1])["metrics"]

    def predict(self, data, out, **options):
        """Predicts each record of the data in one line of the files in `out`; merge=FILE joins them."""
        model = self._has_model("predict")
        arguments = ["--load", str(model), "--data", str(data), "--out", str(out)]
        self._run(["predict", *self._options, *arguments, *flags(options)])

    def save(self, directory):
        """Copies the model to a new directory, which appears when it is complete."""
        model = self._has_model("save")
        directory = pathlib.Path(directory).absolute()
        if directory.exists():
            raise FileExistsError(f"{directory} exists; name a new directory")
        copy = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
        shutil.copytree(model, copy)
        copy.rename(directory)

    def close(self):
        """Ends a training that runs, and removes the temporary directory."""
        if self._closed:
            return
        self._closed = True
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
            self._stderr.close()
        if self._temporary:
            shutil.rmtree(self._work)

    @property
    def _job_file(self):
        return self._folder / "job"

    def _open(self, call):
        if self._closed:
            raise StateError(f"{call}: the job is closed; create another")

    def _idle(self, call):
        self._open(call)
        if self._process is not None:
            raise StateError(f"{call}: the job trains; wait for it, or stop it and wait")

    def _training(self, call):
        self._open(call)
        if self._process is None:
            raise StateError(f"{call}: the job does not train; call start before")

    def _has_model(self, call):
        self._idle(call)
        if self._model is None:
            raise StateError(f"{call}: the job has no model; load one, or start a training and wait for it")
        return self._model

    def _run(self, arguments):
        done = subprocess.run([self._program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise JobError(f"tidewater {arguments[0]}", done.returncode, done.stderr)


def flags(options):
    """Command line of keywords: True is a flag without a value, None and False are left out."""
    words = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words
