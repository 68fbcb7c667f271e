"""Which nodes a search expands and which children it keeps.

Max-reward PUCT follows the appendix of the GPU Forecasters paper: a node's score is

    Q + c * sigma(A) * P * sqrt(1 + T) / (1 + n)

with Q the largest reward among its children (its own before it has any), sigma(A) the largest minus
the least reward of the archive's nodes that are no seeds (of all nodes while there are only seeds),
P a prior that falls linearly with the rank of its reward, T all expansions and n those at the node
or below. Selecting a node blocks its ancestors and descendants for the rest of the batch. A parent
whose children all failed gains a visit and no reward, so its score decays. Of each parent's
children the best k enter; beyond its capacity the archive keeps its seeds and the best of the rest.
"""

from __future__ import annotations

import math

import msgspec

from kernel_archive.readers.events import Feedback


class SearchNode(msgspec.Struct, kw_only=True):
    """One evaluated program that may be expanded."""

    ulid: str
    code: str
    ancestors: list[str]  # ids, nearest first
    reward: float  # larger is better
    is_seed: bool = False  # never leaves the archive
    feedback: Feedback | None = None  # what was measured


class State(msgspec.Struct):
    """The archive of a search and what expansions taught it."""

    archive: list[SearchNode] = []  # nodes, in order of entry
    visits: dict[str, int] = {}  # expansions at a node or below it
    best_child: dict[str, float] = {}  # largest reward of its children
    expansions: int = 0  # all expansions

    def node(self, ulid: str) -> SearchNode:
        """Find a node of the archive; a ``ValueError`` says that it is not there."""
        (match,) = (node for node in self.archive if node.ulid == ulid)
        return match


class Puct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Max-reward PUCT."""

    batch_size: int = 2  # parents per step
    samples_per_parent: int = 4  # programs measured per parent and step
    #: Programs proposed per parent and step; a forecaster chooses those that are measured. 0: all
    #: proposals are measured.
    proposals_per_parent: int = 0
    k_per_parent: int = 2  # children per parent and step that may enter the archive
    archive_capacity: int = 1000  # most nodes kept
    c_puct: float = 1.0  # weight of exploration

    def scores(self, state: State) -> list[tuple[float, SearchNode]]:
        """Score every node, in order of the archive."""
        nodes = state.archive
        ranked = sorted(range(len(nodes)), key=lambda i: -nodes[i].reward)
        weight = dict(zip(ranked, range(len(nodes), 0, -1), strict=True))
        total = len(nodes) * (len(nodes) + 1) / 2
        rewards = [n.reward for n in nodes if not n.is_seed] or [n.reward for n in nodes]
        explore = self.c_puct * (max(rewards) - min(rewards)) * math.sqrt(1 + state.expansions)
        scored = []
        for i, node in enumerate(nodes):
            quality = state.best_child.get(node.ulid, node.reward)
            visits = state.visits.get(node.ulid, 0)
            scored.append((quality + explore * weight[i] / total / (1 + visits), node))
        return scored

    def select(self, state: State) -> list[SearchNode]:
        """Select the best nodes, none an ancestor or descendant of another."""
        chosen: list[SearchNode] = []
        order = sorted(self.scores(state), key=lambda s: (-s[0], -s[1].reward, s[1].ulid))
        for _, node in order:
            if not any(node.ulid in c.ancestors or c.ulid in node.ancestors for c in chosen):
                chosen.append(node)
        return chosen[: self.batch_size]

    def settle(self, state: State, children: dict[str, list[SearchNode]]) -> None:
        """Count the expansions up the lineage, learn the best child, admit the best k."""
        for parent, nodes in children.items():
            state.expansions += 1
            for ulid in (parent, *state.node(parent).ancestors):
                state.visits[ulid] = state.visits.get(ulid, 0) + 1
            best = sorted(nodes, key=lambda n: (-n.reward, n.ulid))
            if best:
                largest = state.best_child.get(parent, -math.inf)
                state.best_child[parent] = max(largest, best[0].reward)
            for node in best[: self.k_per_parent]:
                if all(node.code != other.code for other in state.archive):
                    state.archive.append(node)
        if len(state.archive) > self.archive_capacity:
            # Seeds first, then the best.
            order = sorted(state.archive, key=lambda n: (not n.is_seed, -n.reward, n.ulid))
            seeds = sum(n.is_seed for n in state.archive)
            keep = {n.ulid for n in order[: max(seeds, self.archive_capacity)]}
            state.archive = [n for n in state.archive if n.ulid in keep]
