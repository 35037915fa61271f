"""Layers that the models share: convolution with batch normalisation, and first weights."""

from __future__ import annotations

from torch import nn

Size = int | tuple[int, int]
_LINEAR_DEVIATION = 0.01


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: Size,
    stride: int = 1,
    padding: Size | None = None,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Return a convolution without bias, batch normalisation, and an activation unless it is None.

    Args:
        inputs: channels that come in.
        outputs: channels that go out.
        kernel: its side, or (height, width).
        stride: of the convolution.
        padding: None keeps the size of the image at stride 1 (odd kernels).
        groups: `inputs` for a depthwise convolution.
        activation: a module that works in place.
    """
    if padding is None:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is not None:
        layers.append(activation(inplace=True))
    return nn.Sequential(*layers)


def init_weights(model: nn.Module) -> nn.Module:
    """Draw the first weights of `model` and return it.

    Convolutions as He et al. 2015 (arXiv:1502.01852, equation 14: variance 2 / fan-out), linear layers from a normal
    distribution, biases zero. The published weights were drawn in many ways; what a step costs does not depend on it.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, _LINEAR_DEVIATION)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
