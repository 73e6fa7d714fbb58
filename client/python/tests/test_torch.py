"""tidewater.torch against a service: python test_torch.py COORDINATOR TOKEN_FILE

Like test_client.py, in an environment with PyTorch.
"""

import copy
import gc
import tempfile
import threading
import warnings

import numpy as np
import torch
from test_client import _task_files, all_workers, raises, session

import tidewater
import tidewater.data
import tidewater.torch
from tidewater.torch import Embedding, Optimizer

ADAM = ("adam", 0.01, 0.9, 0.999, 1e-8)


def rows_in(s, table):
    """Rows that exist in a sparse table."""
    return s.reduce(table, "1") / table.cols


def twin(embedding, sparse=False):
    """torch.nn.Embedding with the values of a small embedding."""
    local = torch.nn.Embedding(
        embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx, dtype=embedding.dtype, sparse=sparse
    )
    with torch.no_grad():
        local.weight.copy_(embedding(torch.arange(embedding.num_embeddings)))
    return local


def test_rows_and_steps_are_those_of_nn_embedding():
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        with session() as s:
            e = Embedding(s, "e", 20, 3, dtype=dtype, optimizer=("sgd", 0.5), init=("normal", 0.0, 1.0), seed=5)
            local = twin(e)
            assert local.weight.abs().sum() > 1 and e.dtype == dtype
            step, local_step = Optimizer(s, "o", e), torch.optim.SGD(local.parameters(), 0.5)
            shapes = [torch.tensor(4), torch.tensor([3, 3, 19]), torch.tensor([[[0, 7], [7, 7]]], dtype=torch.int32)]
            for ids in shapes + [torch.zeros((0, 2), dtype=torch.int64)]:
                assert torch.equal(e(ids), local(ids)), (ids, e(ids), local(ids))
                # Twice in a step, with another weight for each use of an id.
                for model, optimizer in ((e, step), (local, local_step)):
                    optimizer.zero_grad()
                    rows = model(ids)
                    factors = torch.arange(1, rows.numel() + 1, dtype=dtype).reshape(rows.shape)
                    (rows * factors + model(ids) ** 2).sum().backward()
                    optimizer.step()
                distance = (e(torch.arange(20)) - local.weight).abs().max()
                assert distance < tolerance, (dtype, ids, distance)
                assert e.unpushed == 0, "the evaluation above collects no gradient"


def test_tasks_of_two_workers_count_each_record_once():
    files = _task_files()

    def work(s):
        seen = s.table("seen", "rows", dtype=np.int64, rows=40, cols=1)
        tasks = tidewater.data.tasks(s, files, "rows", 100, batch=16)
        rows = 0
        for labels, features in torch.utils.data.DataLoader(tidewater.data.torch_tasks(tasks, columns=40), batch_size=None):
            seen.push(torch.ones(len(labels), 1, dtype=torch.int64), features.argmax(1).numpy())
            rows += len(labels)
        s.flush()
        s.barrier("end")
        return rows, seen.pull(np.arange(40))[:, 0].tolist()

    (first, counts), (second, same) = all_workers(work)
    assert first + second == 120 and first and second, (first, second)
    assert counts == same == [3] * 40, counts


def test_uses_in_one_step_are_one_step_of_the_rule():
    with session() as s:
        e = Embedding(s, "e", 4, 2, optimizer=ADAM, init=("normal", 0.0, 1.0))
        local = twin(e)
        local_step = torch.optim.Adam(local.parameters(), 0.01)
        step, every = Optimizer(s, "o", e), torch.tensor([[3, 0], [1, 2], [0, 0]])
        for n in range(5):
            for model, optimizer in ((e, step), (local, local_step)):
                optimizer.zero_grad()
                for use in range(n % 3 + 1):
                    (model(every) ** 2 * (use + 1)).sum().backward()
                optimizer.step()
        distance = (e(torch.arange(4)) - local.weight).abs().max()
        assert distance < 1e-5, distance


def test_padding_is_zero_and_stays_out_of_the_table():
    for padding in (2, -3):
        with session() as s:
            e = Embedding(s, "e", 5, 2, padding_idx=padding, optimizer=("sgd", 1.0), init=("constant", 1.0))
            assert e.padding_idx == 2
            ids = torch.tensor([[4, 2], [2, 0]])
            assert e(ids).tolist() == [[[1, 1], [0, 0]], [[0, 0], [1, 1]]]
            e(ids).sum().backward()
            assert e.unpushed == 2
            e.push().wait()
            assert e.push() is None
            assert e(ids).tolist() == [[[0, 0], [0, 0]], [[0, 0], [0, 0]]]
            assert e(torch.tensor([2])).tolist() == [[0, 0]]
            assert rows_in(s, e.table) == 2


def test_evaluation_creates_no_rows():
    with session() as s:
        e = Embedding(s, "e", None, 2, init=("constant", 3.0))
        ids = torch.tensor([1 << 62, 5])
        with torch.no_grad():
            assert e(ids).tolist() == [[3, 3]] * 2
        e.eval()
        assert not e(ids).requires_grad
        assert rows_in(s, e.table) == 0
        e.train()
        assert e(ids).requires_grad and rows_in(s, e.table) == 2


def test_gradients_that_are_not_pushed_are_noticed():
    with session(sync="bsp") as s:
        e = Embedding(s, "e", 9, 2, optimizer=("sgd", 1.0))
        step = Optimizer(s, "o", e)
        ids = torch.tensor([1, 2])
        e(ids).sum().backward()
        rows = e(ids)
        s.tick()
        words = "gradients of 2 rows from iteration 0, and the session is in iteration 1: call Optimizer.step()"
        raises(tidewater.Error, words, lambda: e(ids))
        raises(tidewater.Error, words, lambda: rows.sum().backward())
        step.zero_grad()
        assert e.unpushed == 0
        e(ids).sum().backward()
        step.step()
        assert e(ids).tolist() == [[-1, -1]] * 2, "the gradient that was dropped, or refused, is not in the table"
        e(ids).sum().backward()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            del e, step, rows
            gc.collect()
        assert [str(w.message) for w in seen] == [
            'the embedding "e" was dropped with gradients of 2 rows that no step has pushed'
        ]


def _model(s, name, **options):
    torch.manual_seed(1)
    embedding = Embedding(s, f"{name}/rows", 6, 3, init=("normal", 0.0, 1.0), **options)
    return torch.nn.Sequential(embedding, torch.nn.Flatten(), torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def _local(model):
    """The same model in PyTorch alone."""
    return torch.nn.Sequential(twin(model[0]), *(copy.deepcopy(part) for part in model[1:]))


# PyTorch's seed is the process's: one worker at a time draws a model.
models = threading.Lock()
IDS = torch.tensor([[0, 1], [2, 3], [4, 5], [5, 0]])


def _loss(model, ids=IDS):
    return ((model(ids) - ids.sum(1, keepdim=True)) ** 2).mean()


def test_steps_are_those_of_pytorch():
    rules = {("sgd", 0.05): lambda p: torch.optim.SGD(p, 0.05), ADAM: lambda p: torch.optim.Adam(p, 0.01)}
    for (rule, local_rule), sync in ((of, sync) for of in rules.items() for sync in ("asp", "bsp")):
        with session(sync=sync) as s:
            options = {"optimizer": rule, "effect": "clock_mean" if sync == "bsp" else "immediate"}
            model = _model(s, "m", **options)
            local = _local(model)
            step, local_step = Optimizer(s, "m", model, tick=sync == "bsp", **options), local_rule(local.parameters())
            assert [t.name for t in step.tables] == ["m/2.weight", "m/2.bias", "m/4.weight", "m/4.bias", "m/rows"]
            addresses = [p.data_ptr() for p in model.parameters()]

            def closure():
                step.zero_grad()
                loss = _loss(model)
                loss.backward()
                return loss

            for _ in range(20):
                loss = step.step(closure)
                local_step.zero_grad()
                local_loss = _loss(local)
                local_loss.backward()
                local_step.step()
                assert abs(loss - local_loss) < 1e-5, (rule, sync, loss, local_loss)
            assert addresses == [p.data_ptr() for p in model.parameters()], "parameters are pulled where they are"
            assert s.clock == (21 if sync == "bsp" else 0)


def test_workers_take_the_step_of_the_joint_batch():
    # A factor of all gradients changes the steps of SGD, and those of Adam do not show it. Adam counts steps.
    rules = {("sgd", 0.05): lambda p: torch.optim.SGD(p, 0.05), ADAM: lambda p: torch.optim.Adam(p, 0.01)}
    for rule, local_rule in rules.items():
        losses = _joint_losses(rule, local_rule)
        assert losses[0] == losses[1] and len(losses[0]) == 10
        assert max(abs(ours - local) for ours, local in losses[0]) < 1e-5, (rule, losses[0])


def _joint_losses(rule, local_rule):
    """Losses of ten steps of two workers and of a model in PyTorch, as each worker sees them."""
    options = {"optimizer": rule, "effect": "clock_sum"}
    halves = (IDS[:2], IDS[2:])  # rows 0 and 5 are in both, the others in one

    def work(s):
        with models:
            model = _model(s, "m", **options)
        step = Optimizer(s, "m", model, average=True, **options)
        local = _local(model)
        local_step = local_rule(local.parameters())
        losses = []
        for _ in range(10):
            step.zero_grad()
            loss = _loss(model, halves[s.rank])
            loss.backward()
            step.step()
            local_step.zero_grad()
            joint = _loss(local)
            joint.backward()
            local_step.step()
            losses.append((s.all_reduce(np.array([loss.item()]))[0] / 2, joint.item()))
        return losses

    return all_workers(work, sync="bsp")


def test_workers_begin_with_one_model_and_keep_it():
    for sync, effect in {"asp": "immediate", "ssp:1": "clock_sum", "bsp": "clock_mean"}.items():
        options = {"optimizer": ("sgd", 0.02), "effect": effect}

        def work(s):
            with models:
                model = _model(s, "m", **options)
                torch.nn.init.constant_(model[2].weight, s.rank + 1.0)
            step = Optimizer(s, "m", model, tick=sync != "asp", average=True, **options)
            assert (model[2].weight == 1).all(), "those of rank 0"
            first = _loss(model).item()
            s.barrier("first")
            for _ in range(20):
                step.zero_grad()
                _loss(model).backward()
                step.step()
            s.barrier("last")
            while effect != "immediate" and s.global_clock() < s.clock:
                s.progress()
            step.pull()
            weights = s.all_gather(model[2].weight.detach().numpy())
            assert (weights[0] == weights[1]).all()
            with torch.no_grad():
                assert _loss(model).item() < 0.7 * first, (sync, first, _loss(model))

        all_workers(work, sync=sync)


def test_workers_in_different_iterations_are_named():
    def work(s):
        if s.rank == 1:
            s.tick()
        model = torch.nn.Linear(2, 1)
        raises(ValueError, "in iterations [0, 1]", lambda: Optimizer(s, "o", model, effect="clock_sum"))

    all_workers(work)


def test_a_saved_model_goes_on_with_its_state():
    losses = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("whole", "first", "second"):
            with session() as s:
                if part == "second":
                    assert "m/2.weight" in s.load(folder)
                model = _model(s, "m", optimizer=ADAM)
                if part == "second":
                    torch.nn.init.zeros_(model[2].weight)  # the tables' values count
                step = Optimizer(s, "m", model, optimizer=ADAM, resume=part == "second")
                losses[part] = []
                for _ in range(6 if part == "whole" else 3):
                    step.zero_grad()
                    loss = _loss(model)
                    loss.backward()
                    step.step()
                    losses[part].append(loss.item())
                if part == "first":
                    s.save(folder)
    assert losses["first"] + losses["second"] == losses["whole"], losses


def test_wrong_tensors_and_tables_are_named():
    with session() as s:
        e = Embedding(s, "e", 10, 2)
        raises(IndexError, 'id 10; those of the embedding "e" are from 0 to 9', lambda: e(torch.tensor([3, 10])))
        raises(IndexError, "id -1", lambda: e(torch.tensor([-1])))
        raises(TypeError, "ids hold torch.float32", lambda: e(torch.zeros(1)))
        meta = torch.zeros(1, dtype=torch.int64, device="meta")
        raises(ValueError, "ids is on meta, not on the CPU; a copy is: its cpu()", lambda: e(meta))
        raises(TypeError, "dtype is torch.float16", lambda: Embedding(s, "h", 10, 2, dtype=torch.float16))
        raises(ValueError, "padding_idx is 10", lambda: Embedding(s, "p", 10, 2, padding_idx=10))
        raises(ValueError, "not limited", lambda: Embedding(s, "p", None, 2, padding_idx=-1))
        raises(TypeError, "not copied or pickled", lambda: copy.deepcopy(e))
        ranges = s.table("r", "range", dtype=np.float32, rows=10, cols=2)
        raises(ValueError, "of kind range, 2 x float32", lambda: Embedding(s, ranges, 10, 2))
        rows = s.table("d", "rows", dtype=np.float64, rows=10, cols=2)
        raises(ValueError, "has 10 rows", lambda: Embedding(s, rows, 11, 2))
        raises(ValueError, "optimizer: options of a new table", lambda: Embedding(s, rows, 10, 2, optimizer=ADAM))
        raises(ValueError, "dtype is torch.float32", lambda: Embedding(s, rows, 10, 2, dtype=torch.float32))
        assert Embedding(s, rows, 10, 2)(torch.tensor([9])).dtype == torch.float64

        def linear(device="cpu", dtype=torch.float32):
            return torch.nn.Linear(2, 3, device=device, dtype=dtype)

        raises(ValueError, 'the parameter "weight" is on meta', lambda: Optimizer(s, "o", linear("meta")))
        raises(ValueError, 'the parameter "weight" holds torch.float16', lambda: Optimizer(s, "o", linear("cpu", torch.float16)))
        turned = linear()
        turned.weight.data = torch.zeros(2, 3).t()
        raises(ValueError, 'the parameter "weight" is not contiguous', lambda: Optimizer(s, "o", turned))
        raises(ValueError, "domain 0", lambda: Optimizer(s, "o", linear(), domain=1))
        sparse = torch.nn.Embedding(4, 2, sparse=True)
        step = Optimizer(s, "s", sparse)
        sparse(torch.tensor([1])).sum().backward()
        raises(ValueError, "use tidewater.torch.Embedding, or sparse=False", step.step)
        raises(TypeError, "save it by Session.save", step.state_dict)
        raises(TypeError, "is not an Optimizer", lambda: torch.optim.lr_scheduler.StepLR(step, 1))
        with session() as other:
            raises(ValueError, "another session", lambda: Embedding(other, rows, 10, 2))
            raises(ValueError, "another session", lambda: Optimizer(other, "o", e))


def test_a_refused_gradient_is_an_error_of_its_step():
    with session() as s:
        e = Embedding(s, "e", 10, 2)
        step = Optimizer(s, "o", e)
        (e(torch.tensor([1])).sum() * float("nan")).backward()
        raises(tidewater.Error, "NaN", step.step)
        e(torch.tensor([1])).sum().backward()
        step.step()


def main():
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    for name, test in tests:
        test()
        print(f"ok: {name}", flush=True)
    print(f"{len(tests)} tests of PyTorch {torch.__version__}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
