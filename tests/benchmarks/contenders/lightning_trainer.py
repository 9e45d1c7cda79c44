"""The job as a LightningModule, with everything switched off that the job does not need."""

from __future__ import annotations

from typing import Any

from digits_job import EPOCHS, GLOBAL_SIZE, LOG_EVERY, RANKS, cosine, model_and_optimizer, training_rows
from lightning import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Digits(LightningModule):
    """The model with its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.optimizer = model_and_optimizer()
        self.loss_of = nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        images, classes = batch
        loss: Tensor = self.loss_of(self.model(images), classes)
        step = self.global_step + 1
        if step % LOG_EVERY == 0:
            self.print(f"epoch {self.current_epoch} step {step} loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        scheduler = {"scheduler": cosine(self.optimizer), "interval": "step"}
        return {"optimizer": self.optimizer, "lr_scheduler": scheduler}


def main() -> None:
    trainer = Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(training_rows(), GLOBAL_SIZE // RANKS, shuffle=True, drop_last=True))


if __name__ == "__main__":
    main()
