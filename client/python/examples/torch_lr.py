"""Logistic regression in PyTorch, its weights in Tidewater: tensors are pulled into and pushed from where
they are, by DLPack.

    tidewater run --servers 2 --workers 2 -- python torch_lr.py

Each worker draws its own rows of one made-up problem. The loss and its gradient are PyTorch's; AdaGrad
runs at the servers; under BSP, so that the result does not depend on timing.
"""

import torch

import tidewater

FEATURES, ROWS, STEPS, BATCH = 200, 4000, 300, 100


def rows_of(rank):
    """Rows of a worker, labelled by weights that all workers draw alike."""
    truth = torch.randn(FEATURES, generator=torch.Generator().manual_seed(1))
    x = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(2 + rank))
    return x, (x @ truth > 0).float()


def main():
    with tidewater.Session(sync="bsp") as session:
        table = session.table(
            "w", "range", dtype="float32", rows=1, cols=FEATURES, optimizer=("adagrad", 0.5, 1e-8), effect="clock_mean"
        )
        x, y = rows_of(session.rank)
        w = torch.zeros(FEATURES)
        loss_of = torch.nn.BCEWithLogitsLoss()
        for step in range(STEPS):
            table.pull(out=w)  # into the tensor's memory
            batch = slice(step * BATCH % ROWS, step * BATCH % ROWS + BATCH)
            weights = w.requires_grad_()
            loss_of(x[batch] @ weights, y[batch]).backward()
            w = weights.detach()  # the same memory
            table.push(weights.grad, op="gradient").wait()
            session.tick()
        table.pull(out=w)
        unseen, labels = rows_of(1000)
        right = ((unseen @ w > 0) == (labels > 0)).float().mean().item()
        session.barrier("done")
        if session.rank == 0:
            print(f"accuracy {right:.3f} on rows that nobody has seen")
        assert right > 0.95, right


if __name__ == "__main__":
    main()
