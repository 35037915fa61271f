"""The model of the app, which drives need without Flower."""

from torch import nn


class Net(nn.Sequential):
    """A small convolutional network for 8x8 digits."""

    def __init__(self):
        super().__init__(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10))
