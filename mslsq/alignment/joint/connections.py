"""What hangs together by links: components, the strongest tree, and the links that alone hold two parts together."""

from collections.abc import Iterable, Sequence

from mslsq.alignment.joint.links import Link


def component(root: int, links: Iterable[Link]) -> set[int]:
    """The maps that some chain of links joins with `root`, itself included."""
    return set(strongest_tree(root, links))


def components(maps: Sequence[int], links: Sequence[Link]) -> list[set[int]]:
    """The parts of the maps, in the order of their first members."""
    parts: list[set[int]] = []
    for index in maps:
        if not any(index in part for part in parts):
            parts.append(component(index, links))
    return parts


def strongest_tree(root: int, links: Iterable[Link]) -> dict[int, Link | None]:
    """For every map joined with `root` the link that leads to it, along the maximum spanning tree by support, in the
    order in which maps are reached (Prim, 1957)."""
    links = list(links)
    reached: dict[int, Link | None] = {root: None}
    while True:
        across = [link for link in links if (link.fixed in reached) != (link.moving in reached)]
        if not across:
            return reached
        best = max(across, key=lambda link: link.support)
        reached[best.moving if best.fixed in reached else best.fixed] = best


def cut_off(bridge: Link, root: int, links: Sequence[Link]) -> set[int]:
    """The maps that are joined with `root` by this link alone; none if a loop goes through it."""
    others = [link for link in links if link is not bridge]
    whole, left = component(root, links), component(root, others)
    return whole - left


def bridges(root: int, links: Sequence[Link]) -> list[tuple[Link, set[int]]]:
    """The links that no loop goes through, and what each alone holds; what holds most comes first."""
    found = [(link, cut_off(link, root, links)) for link in links]
    return sorted([(link, part) for link, part in found if part], key=lambda entry: -len(entry[1]))
