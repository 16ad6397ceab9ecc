"""A checkpoint: tensors and a table of plain values, in one safetensors file written whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from salf.common.errors import SalfError
from salf.common.files import write_whole


def write(path: Path, groups: Mapping[str, Mapping[str, Tensor]], state: Any) -> None:
    """Write groups of tensors by name, such as weights and velocity, and what is no tensor."""
    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    write_whole(path, save(tensors, {"state": json.dumps(state)}))


def read(path: Path) -> tuple[dict[str, dict[str, Tensor]], Any] | None:
    """What `write` wrote, the groups and the rest; None without a file."""
    groups: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, "pt") as stored:
            state = json.loads(stored.metadata()["state"])
            for key in stored.keys():  # noqa: SIM118  (it is no mapping)
                group, _, name = key.partition("/")
                groups.setdefault(group, {})[name] = stored.get_tensor(key)
    except FileNotFoundError:
        return None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise unreadable(path, error) from None
    return groups, state


def unreadable(path: Path, error: object) -> SalfError:
    """A checkpoint that is damaged, or of another run."""
    return SalfError(f"{path} cannot be read ({error}). Delete it to start over.")
