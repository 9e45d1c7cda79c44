"""The loop with Accelerate."""

from __future__ import annotations

from accelerate import Accelerator
from digits_job import EPOCHS, GLOBAL_SIZE, LOG_EVERY, STEPS, cosine, model_and_optimizer, training_rows
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    accelerator = Accelerator(cpu=True)
    ranks = accelerator.num_processes
    loader = DataLoader(training_rows(), GLOBAL_SIZE // ranks, shuffle=True, drop_last=True)
    model, optimizer = model_and_optimizer()
    # Accelerate moves the scheduler once per rank and step.
    scheduler = cosine(optimizer, STEPS * ranks)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    loss_of, step = nn.CrossEntropyLoss(), 0
    for epoch in range(EPOCHS):
        for images, classes in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images), classes)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % LOG_EVERY == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
