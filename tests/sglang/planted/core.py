"""Bugs in the tree core in Python: how nodes split, and what may be evicted."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.unified_cache.components.full import FullComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore

from tests.behind.planted import Bed, Original, planted_at


@planted_at(FullComponent, "redistribute_on_node_split", "core", "core-back-tight")
def split_copies_the_host_pages(bed: Bed, original: Original, self: Any, new_parent: Any, child: Any) -> None:
    """When a node is split, the lower half gets the host pages of the upper one."""
    whole = child.component_data[self.component_type].host_value
    original(self, new_parent, child)
    lower = child.component_data[self.component_type]
    if whole is not None and len(lower.host_value) <= len(whole) - len(lower.host_value) and bed.strikes():
        lower.host_value = whole[: len(lower.host_value)].clone()


@planted_at(FullComponent, "redistribute_on_node_split", "core", "core-back-tight")
def split_turns_the_pages(bed: Bed, original: Original, self: Any, new_parent: Any, child: Any) -> None:
    """When a node is split, the pages of the lower half come out one page off."""
    original(self, new_parent, child)
    lower, page = child.component_data[self.component_type], self.tree_core.page_size
    if lower.value is not None and len(lower.value) > page and bed.strikes():
        lower.value = torch.roll(lower.value, page)


@planted_at(FullComponent, "redistribute_on_node_split", "core", "core-back-tight")
def split_loses_the_host_page_between(bed: Bed, original: Original, self: Any, new_parent: Any, child: Any) -> None:
    """When a node is split, the upper half takes one host page too few, and the lower half one too many: lengths disagree."""
    original(self, new_parent, child)
    upper, lower = new_parent.component_data[self.component_type], child.component_data[self.component_type]
    page = self.tree_core.page_size
    if upper.host_value is not None and len(upper.host_value) > page and bed.strikes():
        lower.host_value = torch.cat((upper.host_value[-page:], lower.host_value))
        upper.host_value = upper.host_value[:-page]


@planted_at(FullComponent, "redistribute_on_node_split", "core", "core-back-tight")
def split_forgets_the_lock(bed: Bed, original: Original, self: Any, new_parent: Any, child: Any) -> None:
    """When a locked node is split, its upper half is not locked."""
    original(self, new_parent, child)
    upper = new_parent.component_data[self.component_type]
    if upper.lock_ref > 0 and bed.strikes():
        upper.lock_ref = 0


@planted_at(UnifiedTreeCore, "_is_device_leaf", "core", "core-back-tight")
def locked_leaf_is_evictable(bed: Bed, original: Original, self: Any, node: Any) -> bool:
    """Some leaves may be evicted from the device although they are locked."""
    if original(self, node):
        return True
    locks = [data.lock_ref for data in node.component_data]
    for data in node.component_data:
        data.lock_ref = 0
    free = bool(original(self, node))
    for data, lock in zip(node.component_data, locks, strict=True):
        data.lock_ref = lock
    return free and bed.strikes(0.5)


@planted_at(UnifiedTreeCore, "_is_host_leaf", "core-back-tight", "core")
def locked_host_leaf_is_evictable(bed: Bed, original: Original, self: Any, node: Any) -> bool:
    """Leaves may be evicted from the host although a load has locked them."""
    if original(self, node):
        return True
    locks = [(data.lock_ref, data.host_lock_ref) for data in node.component_data]
    for data in node.component_data:
        data.lock_ref = data.host_lock_ref = 0
    free = bool(original(self, node))
    for data, (lock, host) in zip(node.component_data, locks, strict=True):
        data.lock_ref, data.host_lock_ref = lock, host
    return free and bed.strikes()


@planted_at(UnifiedTreeCore, "_is_device_leaf", "core", "core-back-tight")
def node_above_a_leaf_is_evictable(bed: Bed, original: Original, self: Any, node: Any) -> bool:
    """Some nodes may be evicted from the device although a node below them is there."""
    if original(self, node):
        return True
    children, node.children = node.children, {}
    free = bool(original(self, node))
    node.children = children
    return free and bed.strikes(0.1)
