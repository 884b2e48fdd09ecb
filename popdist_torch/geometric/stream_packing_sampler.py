"""``StreamPackingSampler``: batches of as many graphs as fit one size."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch.utils.data import RandomSampler, Sampler, SequentialSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class StreamPackingSampler(Sampler[list[int]]):
    """Adds one graph after the other to a batch, and begins a new one where the next does not fit.

    Args:
        data_source: The graphs.
        max_num_graphs: Graphs of a batch.
        max_num_nodes: Nodes of a batch; by default as many as the largest graphs have.
        max_num_edges: Edges of a batch; by default as above.
        base_sampler: The order of the graphs; that of the data set by default.
        allow_skip_data: Whether graphs that are too large for a batch are left out.

    Raises:
        ValueError: A limit is too small, or there are no graphs.
    """

    def __init__(
        self,
        data_source: Any,
        max_num_graphs: int,
        max_num_nodes: int | None = None,
        max_num_edges: int | None = None,
        base_sampler: Sampler[int] | Iterable[int] | None = None,
        allow_skip_data: bool | None = False,
    ) -> None:
        if base_sampler is not None and len(base_sampler) == 0:  # type: ignore[arg-type]
            raise ValueError(f"The `sampler` {base_sampler} gives no samples.")
        if max_num_graphs is None or max_num_graphs < 1:
            raise ValueError(f"`max_num_graphs` must be at least 1; it is {max_num_graphs}.")
        limits = {"max_num_nodes": max_num_nodes, "max_num_edges": max_num_edges}
        for name, limit in limits.items():
            if limit is not None and limit < max_num_graphs:
                raise ValueError(f"`{name}` must be at least {max_num_graphs}; it is {limit}.")
        self.data_source = data_source
        self.max_num_graphs = max_num_graphs
        self.max_num_nodes = max_num_nodes or self._largest("num_nodes")
        self.max_num_edges = max_num_edges or self._largest("num_edges")
        self.base_sampler = SequentialSampler(data_source) if base_sampler is None else base_sampler
        self.allow_skip_data = allow_skip_data

    def _largest(self, what: str) -> int:
        return self.max_num_graphs * max(int(getattr(one, what)) for one in self.data_source)

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        nodes = edges = 0
        for index in self.base_sampler:
            graph = self.data_source[index]
            more = graph.num_nodes, graph.num_edges
            if batch and not self._fits(len(batch) + 1, nodes + more[0], edges + more[1]):
                yield batch
                batch, nodes, edges = [], 0, 0
            if self._fits(len(batch) + 1, nodes + more[0], edges + more[1]):
                batch.append(index)
                nodes, edges = nodes + more[0], edges + more[1]
            elif not self.allow_skip_data:
                raise RuntimeError(
                    "The maximum number of graphs, nodes or edges specified is too small to fit in "
                    f"the single sample {index} with {more[0]} nodes and {more[1]} edges. A batch "
                    f"has at most {self.max_num_graphs} graphs, {self.max_num_nodes} nodes and "
                    f"{self.max_num_edges} edges. `allow_skip_data` leaves such samples out."
                )
        if batch:
            yield batch

    def _fits(self, graphs: int, nodes: int, edges: int) -> bool:
        """Whether a batch has room, also for a node and an edge of each graph that it may add."""
        left = self.max_num_graphs - graphs
        return 0 <= left <= min(self.max_num_nodes - nodes, self.max_num_edges - edges)

    def __len__(self) -> int:
        if isinstance(self.base_sampler, RandomSampler):
            raise NotImplementedError(
                f"The length of {type(self).__name__} cannot be determined: its base sampler is "
                "random, so the number of batches differs between epochs."
            )
        return self._length

    @cached_property
    def _length(self) -> int:
        return sum(1 for _ in self)
