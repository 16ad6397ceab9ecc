"""The graph of a backward pass: what must be computed before a gradient is complete."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from salf.core.inputs import tensors_in, unchanged


@dataclass(frozen=True)
class BackwardGraph:
    """The nodes of a backward pass, from the outputs to the parameters."""

    above: Mapping[Node, Sequence[Node]]  # the nodes whose results a node needs
    uses: Mapping[str, Sequence[Node]]  # the nodes that compute a parameter's gradient, by name

    @classmethod
    def of(cls, module: nn.Module, example: Tensor) -> "BackwardGraph":
        """The graph that the forward pass of `example` leaves. It leaves the module unchanged."""
        with unchanged(module), torch.enable_grad():
            outputs = list(tensors_in(module(example)))
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        nodes = [node for node in nodes_of(outputs) if _leaf(node) is None]
        above: dict[Node, list[Node]] = {node: [] for node in nodes}
        uses: dict[str, list[Node]] = {}
        for node in nodes:
            for below, _ in node.next_functions:
                if below in above:
                    above[below].append(node)
                elif below is not None and (name := names.get(id(_leaf(below)))):
                    uses.setdefault(name, []).append(node)
        return cls(above, uses)

    def needed(self, parameters: Iterable[str]) -> set[Node]:
        """All nodes that must have run before these parameters have their whole gradients."""
        ahead = [node for name in parameters for node in self.uses.get(name, ())]
        found = set(ahead)
        for node in ahead:
            new = [parent for parent in self.above[node] if parent not in found]
            found.update(new)
            ahead.extend(new)
        return found

    def out_of_order(self, layers: Sequence[Sequence[str]]) -> tuple[int, int] | None:
        """Two layers (by index) in an order that no backward pass completes; None if all is well.

        `layers` are the names of their parameters. The first of the two is given before the
        second, towards the input, but backpropagation completes it earlier.

        An order is right if *some* order of running the nodes completes the layers from the last
        to the first: parallel branches may run in any order, so several orders can be right. A
        layer is complete when the last of its nodes has run. So of all nodes that a layer and
        those after it need, one that can run last must be a node of this layer; the layers
        that need the same node are complete at the same time, so they must follow it directly.
        """
        run: set[Node] = set()
        after: list[tuple[int, set[Node]]] = []  # this layer and those after it, with their nodes
        for index in reversed(range(len(layers))):
            needed = self.needed(layers[index])
            if not needed:  # frozen or unused: no gradient to wait for
                continue
            run |= needed
            after.insert(0, (index, needed))
            can_run_last = run.difference(*(self.above[node] for node in run))
            who = [[node in nodes for _, nodes in after] for node in can_run_last]
            if not any(needs == sorted(needs, reverse=True) for needs in who):
                return index, after[1][0]
        return None

    def ordered(self, layers: Sequence[Sequence[str]]) -> list[int]:
        """The indices of the layers in an order that a backward pass completes."""
        # From the last layer on, always the one that needs the fewest further nodes: no other
        # layer can be complete strictly before it.
        needed = {index: self.needed(names) for index, names in enumerate(layers)}
        order: list[int] = []
        while needed:
            nearest = min(reversed(needed), key=lambda index: len(needed[index]))
            run = needed.pop(nearest)
            order.insert(0, nearest)
            for nodes in needed.values():
                nodes -= run
        return order


def nodes_of(outputs: Iterable[Tensor]) -> list[Node]:
    """All nodes of the backward pass of these outputs."""
    ahead = [get_gradient_edge(output).node for output in outputs]
    found = set(ahead)
    for node in ahead:  # which grows on the way
        for below, _ in node.next_functions:
            if below is not None and below not in found:
                found.add(below)
                ahead.append(below)
    return ahead


def _leaf(node: Node) -> Tensor | None:
    """The tensor whose gradient ends here. `nn.Linear` uses its weight transposed: no work."""
    if node.name() == "TBackward0":
        (node, _), *_ = node.next_functions  # type: ignore[assignment]
    return getattr(node, "variable", None)
