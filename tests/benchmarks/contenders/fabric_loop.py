"""The loop with Lightning Fabric."""

from __future__ import annotations

from digits_job import EPOCHS, GLOBAL_SIZE, LOG_EVERY, RANKS, cosine, model_and_optimizer, training_rows
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    fabric.launch()
    loader = fabric.setup_dataloaders(
        DataLoader(training_rows(), GLOBAL_SIZE // fabric.world_size, shuffle=True, drop_last=True)
    )
    plain, timed = model_and_optimizer()
    scheduler = cosine(timed)
    model, optimizer = fabric.setup(plain, timed)
    loss_of, step = nn.CrossEntropyLoss(), 0
    for epoch in range(EPOCHS):
        for images, classes in loader:
            optimizer.zero_grad()
            loss = loss_of(model(images), classes)
            fabric.backward(loss)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % LOG_EVERY == 0:
                fabric.print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
