"""Fit the constants of `phones` to measured training steps, and check them on others.

    python tools/fit_phones.py             # prints constants, and measured and predicted times
    python tools/fit_phones.py --write     # puts the table into docs/fleets.md
    python tools/fit_phones.py --check     # fails if the table or the constants are not these

Measured by others: UbiquitousLearning/Benchmark-On-Device-Training on GitHub, commit 1b3cfeb (MNN
2021, four threads, SGD with momentum; means of at least 20 steps), folder tools/train/benchmark.
The networks are those of that commit. They are not all what its README says: AlexNet has 30 million
parameters, not 61 million, and LeNet's second convolution is not trained.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor, nn

from salf.core.layers import Layers
from salf.worlds.fleet.cost import Cost
from salf.worlds.fleet.devices import DeviceClass
from salf.worlds.fleet.named import PHONE

DOCS = Path(__file__).parents[1] / "docs" / "fleets.md"
BEGIN, END = "<!-- tools/fit_phones.py -->\n", "<!-- end of the table -->\n"
ROWS = (1, 2, 4, 8, 16, 32)
CONSTANTS = [field.name for field in fields(DeviceClass) if field.name not in ("unit", "layer")]
FITTED_TO = "Xiaomi Mi 9"
# Milliseconds of a step with batches of ROWS.
MEASURED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "Xiaomi Mi 9": {
        "LeNet": (9.7, 12.3, 13.8, 16.3, 19.1),
        "AlexNet": (554.1, 713.2, 857.2, 1304.5, 2130.6),
        "GoogLeNet": (276.6, 357.8, 499.3, 836.6, 1529.4),
        "MobileNetV2": (403.2, 671.4, 1139.3, 2248.8, 4525.2),
        "SqueezeNet": (150.2, 299.1, 607.9, 1266.5, 2704.5),
    },
    "Meizu 16T": {
        "LeNet": (10.1, 11.3, 12.2, 14.3, 17.3),
        "AlexNet": (498.5, 663.0, 844.1, 1330.1, 2268.9),
        "GoogLeNet": (220.0, 309.8, 457.1, 789.6, 1501.8),
    },
    "Meizu 16T at 1.7 GHz": {
        "LeNet": (8.8, 11.1, 11.8, 14.9, 20.8, 28.7),
        "AlexNet": (605.1, 781.9, 963.1, 1472.1, 2392.5, 4384.5),
        "GoogLeNet": (286.2, 388.3, 567.4, 957.6, 1763.9, 3420.8),
        "MobileNetV2": (514.2, 827.9, 1345.4, 2459.5, 4814.5),
        "SqueezeNet": (198.0, 378.8, 726.8, 1451.0, 2939.7, 16602.0),
    },
}
OUT = ("SqueezeNet",)  # not fitted: see docs/fleets.md


class Branches(nn.ModuleList):
    """Branches side by side, joined along the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


class Shortcut(nn.Sequential):
    """A block whose input is added to its output."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, **more: int) -> nn.Conv2d:
    """A padded convolution."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, **more)


def pool() -> nn.Module:
    """The pooling that halves a picture."""
    return nn.MaxPool2d(3, 2, 1)


def lenet() -> nn.Sequential:
    """Lenet.cpp of the benchmark."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 400), nn.ReLU(), nn.Linear(400, 10)),
    )
    net[2].requires_grad_(False)
    return net


def alexnet() -> nn.Sequential:
    """Alexnet.cpp."""
    return nn.Sequential(
        *(nn.Conv2d(3, 96, 11, 4), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(conv(96, 256, 5), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(conv(256, 384, 3), nn.ReLU(), conv(384, 384, 3), nn.ReLU(), conv(384, 256, 3)),
        *(nn.MaxPool2d(3, 2), nn.Flatten(), nn.Linear(6400, 4096), nn.ReLU(), nn.Linear(4096, 10)),
    )


def googlenet() -> nn.Sequential:
    """GoogLeNet.cpp, which has no norms."""

    def inception(inputs: int, *of: int) -> Branches:
        return Branches(
            [
                conv(inputs, of[0], 1),
                nn.Sequential(conv(inputs, of[1], 1), conv(of[1], of[2], 3)),
                nn.Sequential(conv(inputs, of[3], 1), conv(of[3], of[4], 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inputs, of[5], 1)),
            ]
        )

    return nn.Sequential(
        *(conv(3, 64, 7, 2), pool(), conv(64, 192, 3), pool()),
        inception(192, 64, 96, 128, 16, 32, 32),
        inception(256, 128, 128, 192, 32, 96, 64),
        pool(),
        inception(480, 192, 96, 208, 16, 48, 64),
        inception(512, 160, 112, 224, 24, 64, 64),
        inception(512, 128, 128, 256, 24, 64, 64),
        inception(512, 112, 144, 288, 32, 64, 64),
        inception(528, 256, 160, 320, 32, 128, 128),
        pool(),
        inception(832, 256, 160, 320, 32, 128, 128),
        inception(832, 384, 192, 384, 48, 128, 128),
        *(nn.AvgPool2d(7), conv(1024, 10, 1), nn.Flatten()),
    )


def mobilenet() -> nn.Sequential:
    """MobilenetV2.cpp, for 4 classes."""

    def with_norm(
        inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> nn.Module:
        layer = conv(inputs, outputs, kernel, stride, groups=groups, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU6())

    blocks: list[nn.Module] = [with_norm(3, 32, 3, 2)]
    inputs = 32
    settings = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    for times, outputs, count, first in settings:
        for stride in (first, *[1] * (count - 1)):
            wide = inputs * times
            parts = [with_norm(inputs, wide, 1)] if times > 1 else []
            parts += [with_norm(wide, wide, 3, stride, wide), conv(wide, outputs, 1, bias=False)]
            kind = Shortcut if stride == 1 and inputs == outputs else nn.Sequential
            blocks.append(kind(*parts, nn.BatchNorm2d(outputs)))
            inputs = outputs
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 4))
    return nn.Sequential(*blocks, with_norm(320, 1280, 1), *end)


def squeezenet() -> nn.Sequential:
    """SqueezeNet.cpp."""

    def fire(inputs: int, few: int, many: int) -> nn.Sequential:
        return nn.Sequential(
            conv(inputs, few, 1), Branches([conv(few, many, 1), conv(few, many, 3)])
        )

    return nn.Sequential(
        *(conv(3, 96, 7, 2), pool(), fire(96, 16, 64), fire(128, 16, 64), fire(128, 32, 128)),
        *(pool(), fire(256, 32, 128), fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256)),
        *(pool(), fire(512, 64, 256), conv(512, 10, 1), nn.AvgPool2d(14), nn.Flatten()),
    )


NETWORKS: Mapping[str, Callable[[], nn.Sequential]] = {
    "LeNet": lenet,
    "AlexNet": alexnet,
    "GoogLeNet": googlenet,
    "MobileNetV2": mobilenet,
    "SqueezeNet": squeezenet,
}


@cache
def cost(network: str) -> Cost:
    """What salf counts in a step of the network."""
    net = NETWORKS[network]()
    example = torch.zeros((2, 1, 28, 28) if network == "LeNet" else (2, 3, 224, 224))
    return Cost.of(net, Layers.of(net, None, example), example)


def predicted(kind: DeviceClass, network: str, rows: int) -> float:
    """Milliseconds of a step."""
    fixed, row = kind.seconds(cost(network))
    return 1e3 * float(fixed.sum() + rows * row.sum())


def steps(*phones: str) -> list[tuple[str, int, float]]:
    """The network, rows and milliseconds of every step to be fitted on these phones."""
    return [
        (network, rows, ms)
        for phone in phones
        for network, times in MEASURED[phone].items()
        if network not in OUT
        for rows, ms in zip(ROWS, times, strict=False)
    ]


def fit() -> DeviceClass:
    """The constants with the least relative errors on one phone."""

    def made(logs: np.ndarray) -> DeviceClass:
        return DeviceClass("fitted", **dict(zip(CONSTANTS, np.exp(logs).tolist(), strict=True)))

    def errors(logs: np.ndarray) -> list[float]:
        kind = made(logs)
        return [np.log(predicted(kind, *step[:2]) / step[2]) for step in steps(FITTED_TO)]

    start = np.log([getattr(PHONE, name) for name in CONSTANTS])
    return made(least_squares(errors, start + 0.5).x)


def off(kind: DeviceClass, *phones: str, network: str = "") -> list[float]:
    """The relative errors of these steps."""
    return [
        abs(predicted(kind, *step[:2]) / step[2] - 1)
        for step in steps(*phones)
        if network in ("", step[0])
    ]


def shown(times: Sequence[float], mark: str = "") -> str:
    """Milliseconds as cells of the table."""
    cells = [f"{mark}{ms:.0f}{mark}" if ms >= 100 else f"{mark}{ms:.1f}{mark}" for ms in times]
    return " | ".join(cells + ["–"] * (len(ROWS) - len(cells)))


def table() -> str:
    """Measured and predicted milliseconds, as Markdown."""
    others = [phone for phone in MEASURED if phone != FITTED_TO]
    lines = [
        f"| network | phone | {' | '.join(f'batch {rows}' for rows in ROWS)} |",
        "|---|---" + "|---:" * len(ROWS) + "|",
    ]
    for network in NETWORKS:
        found = cost(network)
        size = f"{found.trained.sum() / 1e6:.2g} M, {found.forward.sum() / 1e6:,.0f} M"
        for phone in MEASURED:
            times = MEASURED[phone].get(network, ())
            lines += [f"| {network} ({size}) | {phone} | {shown(times)} |"] * bool(times)
        expected = [predicted(PHONE, network, rows) for rows in ROWS]
        lines.append(f"| | *predicted* | {shown(expected, '*')} |")
    ours, theirs = (
        f"{median(off(PHONE, *phones)):.0%} (at most {max(off(PHONE, *phones)):.0%})"
        for phones in ([FITTED_TO], others)
    )
    by_network = ", ".join(
        f"{network} {median(off(PHONE, *others, network=network)):.0%}"
        for network in NETWORKS
        if network not in OUT
    )
    return "\n".join(
        [
            *lines,
            "",
            f"Milliseconds of a step; in brackets, trained parameters and multiply-adds of the "
            f"forward pass. The median error is {ours} on the {FITTED_TO}, to which the constants "
            f"are fitted, and {theirs} on the Meizu, which is not used for the fit: {by_network}. "
            "SqueezeNet is not in these figures.\n",
        ]
    )


def main(arguments: list[str]) -> None:
    """Print, write or check."""
    found, text = fit(), DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + table() + END + after
    if "--write" in arguments:
        DOCS.write_text(wanted, encoding="utf-8")
    for name in CONSTANTS:
        fitted, used = getattr(found, name), getattr(PHONE, name)
        print(f"{name:13} fitted {fitted:.4g}, used {used:.4g}")
        if "--check" in arguments and not 0.98 < used / fitted < 1.02:
            sys.exit(f"{name} of PHONE in worlds/fleet/named.py is not what the fit finds.")
    print(table())
    if "--check" in arguments and text != wanted:
        sys.exit(f"{DOCS} has another table: run {Path(__file__).name} --write.")


if __name__ == "__main__":
    main(sys.argv[1:])
