"""How real models' parameters lie: the sizes of their tensors, in order."""

from __future__ import annotations


def resnet50() -> list[int]:
    """Return the sizes of ResNet-50's parameters, in their order."""

    def unit(into: int, out: int, side: int) -> list[int]:
        return [out * into * side * side, out, out]

    sizes, into = unit(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += unit(into, width, 1) + unit(width, width, 3) + unit(width, 4 * width, 1)
            sizes += unit(into, 4 * width, 1) if block == 0 else []
            into = 4 * width
    return [*sizes, 1000 * into, 1000]


def lstm() -> list[int]:
    """Return the sizes of a language model's parameters: 10,000 words, two LSTM layers of 1500."""
    layer = [6000 * 1500, 6000 * 1500, 6000, 6000]
    return [10_000 * 1500, *layer, *layer, 10_000 * 1500, 10_000]
