#!/usr/bin/env python3
"""Writes tests/golden/optimizers.txt: parameters after each step of PyTorch's optimizers, in float64.

Needs PyTorch (any build with the CPU): python3 tests/golden/optimizers.py > tests/golden/optimizers.txt
The gradients have a formula, so the test computes the same ones: no random numbers.
"""
import torch

DIM = 4
STEPS = 40
SHOWN = (1, 2, 3, 5, 10, 20, 40)


def gradient(step, column):
    """Between -1.1 and 1.1; the same numbers as in server/kernels/tests/kernels/pytorch.rs."""
    return ((step * 7 + column * 3) % 23) / 10.0 - 1.1


def start(column):
    return 0.5 - 0.25 * column


ADAM = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8}
O = torch.optim
CASES = [
    ("sgd", O.SGD, {"lr": 0.1}),
    ("sgd-decay", O.SGD, {"lr": 0.1, "weight_decay": 0.05}),
    ("momentum", O.SGD, {"lr": 0.1, "momentum": 0.9}),
    ("nesterov", O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("adagrad", O.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    ("adagrad-first", O.Adagrad, {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.1}),
    ("rmsprop", O.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-8}),
    ("rmsprop-decay", O.RMSprop, {"lr": 0.01, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.05}),
    ("adam", O.Adam, ADAM),
    ("adam-decay", O.Adam, {**ADAM, "weight_decay": 0.05}),
    ("amsgrad", O.Adam, {**ADAM, "amsgrad": True}),
    ("adamw", O.AdamW, {**ADAM, "weight_decay": 0.1}),
    ("adadelta", O.Adadelta, {"lr": 0.5, "rho": 0.9, "eps": 1e-6}),
    ("adadelta-decay", O.Adadelta, {"lr": 0.5, "rho": 0.9, "eps": 1e-6, "weight_decay": 0.05}),
    ("proximal-sgd", O.SGD, {"lr": 0.1}),
    ("proximal-sgd-decay", O.SGD, {"lr": 0.1, "weight_decay": 0.05}),
    ("proximal-adagrad", O.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    ("proximal-adagrad-first", O.Adagrad, {"lr": 0.1, "eps": 1e-8, "initial_accumulator_value": 0.1}),
    ("clip-value", O.SGD, {"lr": 0.1}),
    ("clip-norm", O.SGD, {"lr": 0.1}),
]


def dense(name, kind, numbers):
    w = torch.nn.Parameter(torch.tensor([start(c) for c in range(DIM)], dtype=torch.float64))
    rule = kind([w], **numbers)
    for step in range(STEPS):
        w.grad = torch.tensor([gradient(step, c) for c in range(DIM)], dtype=torch.float64)
        if name == "clip-value":
            torch.nn.utils.clip_grad_value_([w], 0.5)
        if name == "clip-norm":
            torch.nn.utils.clip_grad_norm_([w], 1.0)
        rule.step()
        if name.startswith("proximal"):
            shrink(w, numbers, rule.state[w])
        emit(name, step, w.tolist())


L1 = 0.3


def shrink(w, numbers, state):
    """The proximal step behind a step of PyTorch, which has none: its own softshrink, element by element."""
    rate = torch.full((DIM,), numbers["lr"], dtype=torch.float64)
    if "sum" in state:
        rate = rate / (state["sum"].sqrt() + numbers["eps"])
    with torch.no_grad():
        for c in range(DIM):
            w[c] = torch.nn.functional.softshrink(w[c], L1 * rate[c].item())


def sparse():
    """SparseAdam, which counts the steps of all rows together: on one row it counts as a table does."""
    w = torch.nn.Parameter(torch.tensor([[start(c) for c in range(DIM)]], dtype=torch.float64))
    rule = O.SparseAdam([w], **ADAM)
    for step in range(STEPS):
        g = torch.tensor([[gradient(step, c) for c in range(DIM)]], dtype=torch.float64)
        w.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), g, size=w.shape)
        rule.step()
        emit("sparse-adam", step, w.tolist()[0])


def emit(name, step, values):
    if step + 1 in SHOWN:
        print(name, step + 1, *(repr(v) for v in values))


print(f"# Written by tests/golden/optimizers.py with PyTorch {torch.__version__.split('+')[0]}, float64, CPU.")
print("# case, number of steps, parameters after them")
for case in CASES:
    dense(*case)
sparse()
