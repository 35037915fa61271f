"""Segmentation with a second output: which pixels belong to a square, and how many squares there are."""

import torch
from torch import nn
from torch.nn import functional


class Squares(torch.utils.data.Dataset):
    """200 noisy images with one to three bright squares."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        count, mask = 1 + index % 3, torch.zeros(16, 16, dtype=torch.int64)
        for column in range(count):
            row = int(torch.randint(0, 12, (1,), generator=generator))
            mask[row : row + 4, 5 * column : 5 * column + 4] = 1
        image = 0.7 * mask + 0.3 * torch.rand(16, 16, generator=generator)
        return {"image": image[None], "mask": mask, "count": count - 1}


class TwoHeads(nn.Module):
    """(records, 1, 16, 16) images to logits of pixels and of counts."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.pixels, self.count = nn.Conv2d(8, 2, 1), nn.Linear(8, 3)

    def forward(self, image):  # noqa: D102
        features = self.body(image)
        return self.pixels(features), self.count(features.mean((2, 3)))


def both(outputs, batch):
    """Return the mean cross-entropy of pixels, and that of counts."""
    pixels, count = outputs
    return functional.cross_entropy(pixels, batch["mask"]) + functional.cross_entropy(count, batch["count"])


def pixel_accuracy(outputs, batch):
    """Return the share of pixels that are classified rightly."""
    return (outputs[0].argmax(1) == batch["mask"]).float().mean()
