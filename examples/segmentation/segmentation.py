"""Segmentation with a second output: which pixels belong to a square, and how many squares there are."""

import torch
from torch import nn
from torch.nn import functional


def squares():
    """Return 200 noisy images with one to three bright squares."""
    generator, records = torch.Generator().manual_seed(0), []
    for number in range(200):
        mask = torch.zeros(16, 16, dtype=torch.int64)
        for column, row in enumerate(torch.randint(0, 12, (1 + number % 3,), generator=generator).tolist()):
            mask[row : row + 4, 5 * column : 5 * column + 4] = 1
        image = 0.7 * mask + 0.3 * torch.rand(16, 16, generator=generator)
        records.append({"image": image[None], "mask": mask, "count": number % 3})
    return records


class TwoHeads(nn.Module):
    """(records, 1, 16, 16) images to logits of pixels and of counts."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.pixels, self.count = nn.Conv2d(8, 2, 1), nn.Linear(8, 3)

    def forward(self, image):  # noqa: D102
        return self.pixels(self.body(image)), self.count(self.body(image).mean((2, 3)))


def both(outputs, batch):
    """Return the mean cross-entropy of pixels, and that of counts."""
    loss, (pixels, count) = functional.cross_entropy, outputs
    return loss(pixels, batch["mask"]) + loss(count, batch["count"])


def pixel_accuracy(outputs, batch):
    """Return the share of pixels that are classified rightly."""
    return (outputs[0].argmax(1) == batch["mask"]).float().mean()
