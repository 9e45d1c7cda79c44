"""The loop that a good engineer writes by hand for torchrun."""

from __future__ import annotations

import torch.distributed as dist
from digits_job import EPOCHS, GLOBAL_SIZE, LOG_EVERY, SEED, cosine, model_and_optimizer, training_rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    rows = training_rows()
    sampler = DistributedSampler(rows, seed=SEED)
    loader = DataLoader(rows, GLOBAL_SIZE // dist.get_world_size(), sampler=sampler, drop_last=True)
    model, optimizer = model_and_optimizer()
    parallel, scheduler, loss_of, step = DistributedDataParallel(model), cosine(optimizer), nn.CrossEntropyLoss(), 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, classes in loader:
            optimizer.zero_grad()
            loss = loss_of(parallel(images), classes)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % LOG_EVERY == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
