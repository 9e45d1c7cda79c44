"""A small convolution net for small images."""

from __future__ import annotations

from torch import Tensor, nn


class SmallConvNet(nn.Module):
    """Two convolutions and two linear layers for small images.

    Args:
        channels: of the image.
        pixels: height and width of the image, divisible by two.
        classes: outputs.
        width: feature maps of the first convolution.
        batchnorm: normalise after each convolution.
        dropout: probability of dropping a feature before the last layer.
    """

    def __init__(
        self,
        channels: int = 1,
        pixels: int = 8,
        classes: int = 10,
        width: int = 16,
        *,
        batchnorm: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_convolution(channels, width, batchnorm),
            *_convolution(width, 2 * width, batchnorm),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width * (pixels // 2) ** 2, 64),
            nn.ReLU(),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.Linear(64, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(rows, channels, pixels, pixels) -> (rows, classes)."""
        return self.head(self.features(images))  # type: ignore[no-any-return]


def _convolution(inputs: int, outputs: int, batchnorm: bool) -> list[nn.Module]:
    norm = [nn.BatchNorm2d(outputs)] if batchnorm else []
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batchnorm), *norm, nn.ReLU()]
