"""An embedding model of PyTorch with its parameters in Tidewater, next to the same model in PyTorch alone.

    tidewater run --servers 2 --workers 2 -- python embedding.py

A bag of words is classified: the mean of the words' rows, then a linear layer. Both models begin with the same
values. Each worker trains on its part of every batch, under BSP; the model in PyTorch trains on the complete batch.
The losses of both agree to 1e-5 in every step, with SGD and with Adam.

Adam counts the steps of each row. Every batch has every word, so that PyTorch, which counts one number for all rows,
agrees.
"""

import numpy as np
import torch

import tidewater
import tidewater.torch

WORDS, DIM, LENGTH, ROWS, STEPS = 100, 8, 6, 64, 60
TOLERANCE = 1e-5
RULES = {
    "sgd": (("sgd", 0.5), lambda parameters: torch.optim.SGD(parameters, 0.5)),
    "adam": (("adam", 0.01, 0.9, 0.999, 1e-8), lambda parameters: torch.optim.Adam(parameters, 0.01)),
}


class Bag(torch.nn.Module):
    """Classifies rows of words; word 0 fills short rows."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding
        self.linear = torch.nn.Linear(DIM, 1)

    def forward(self, words):
        lengths = (words != 0).sum(1, keepdim=True)
        return self.linear(self.embedding(words).sum(1) / lengths).squeeze(1)


def batches(rows):
    """Batches that all workers draw alike: words, and labels that depend on them."""
    draw = torch.Generator().manual_seed(7)
    weights = torch.randn(WORDS, generator=draw)
    for _ in range(STEPS):
        every = torch.randperm(WORDS - 1, generator=draw) + 1
        others = torch.randint(1, WORDS, (rows * LENGTH - len(every),), generator=draw)
        words = torch.cat((every, others)).reshape(rows, LENGTH)
        last = torch.randint(0, WORDS, (rows, 2), generator=draw)
        last[:, 1] *= torch.randint(0, 2, (rows,), generator=draw)
        words = torch.cat((words, last), 1)
        yield words, (weights[words].sum(1) > 0).float()


def train(session, name):
    """Trains both models; returns the losses of each step."""
    rule, local_rule = RULES[name]
    at_ticks = {"optimizer": rule, "effect": "clock_sum"}
    torch.manual_seed(11)
    model = Bag(
        tidewater.torch.Embedding(
            session, f"{name}/words", WORDS, DIM, padding_idx=0, init=("normal", 0.0, 1.0), seed=3, **at_ticks
        )
    )
    optimizer = tidewater.torch.Optimizer(session, name, model, average=True, **at_ticks)
    local = Bag(torch.nn.Embedding(WORDS, DIM, padding_idx=0))
    with torch.no_grad():
        local.embedding.weight.copy_(model.embedding(torch.arange(WORDS)))
        local.linear.load_state_dict(model.linear.state_dict())
    local_optimizer = local_rule(local.parameters())

    loss_of = torch.nn.BCEWithLogitsLoss()
    losses = []
    for words, labels in batches(ROWS * session.workers):
        mine = slice(session.rank * ROWS, (session.rank + 1) * ROWS)
        optimizer.zero_grad()
        loss = loss_of(model(words[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        local_optimizer.zero_grad()
        local_loss = loss_of(local(words), labels)
        local_loss.backward()
        local_optimizer.step()
        loss_of_all = session.all_reduce(np.array([loss.item()]))[0] / session.workers
        losses.append((loss_of_all, local_loss.item()))
    return losses


def main():
    with tidewater.Session(sync="bsp") as session:
        for name in RULES:
            losses = train(session, name)
            distance = max(abs(ours - local) for ours, local in losses)
            if session.rank == 0:
                (first, _), (last, local) = losses[0], losses[-1]
                print(
                    f"{name}: loss {first:.6f} to {last:.6f} with {session.workers} workers, {local:.6f} in PyTorch; "
                    f"at most {distance:.1e} apart"
                )
            assert distance < TOLERANCE, (name, distance)
            assert losses[-1][0] < 0.9 * losses[0][0], (name, losses[0], losses[-1])


if __name__ == "__main__":
    main()
