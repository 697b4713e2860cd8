"""What hangs together by links: components, the strongest tree, and the links that alone hold two parts together.

`roots` are the maps whose places are known: the reference, and maps that were placed before.
"""

from collections.abc import Iterable, Sequence

from mslsq.alignment.joint.links import Link


def component(roots: Iterable[int], links: Iterable[Link]) -> set[int]:
    """The maps that some chain of links joins with a root, the roots included."""
    return set(strongest_tree(roots, links))


def components(maps: Sequence[int], links: Sequence[Link], roots: Iterable[int] = ()) -> list[set[int]]:
    """The parts of the maps, in the order of their first members. The roots are of one part."""
    parts = [component(roots, links)] if roots else []
    for index in maps:
        if not any(index in part for part in parts):
            parts.append(component([index], links))
    return parts


def strongest_tree(roots: Iterable[int], links: Iterable[Link]) -> dict[int, Link | None]:
    """For every map joined with a root the link that leads to it, along the maximum spanning tree by support, in the
    order in which maps are reached (Prim, 1957). None for the roots."""
    links = list(links)
    reached: dict[int, Link | None] = dict.fromkeys(roots)
    while True:
        across = [link for link in links if (link.fixed in reached) != (link.moving in reached)]
        if not across:
            return reached
        best = max(across, key=lambda link: link.support)
        reached[best.moving if best.fixed in reached else best.fixed] = best


def cut_off(bridge: Link, roots: Iterable[int], links: Sequence[Link]) -> set[int]:
    """The maps that are joined with the roots by this link alone; none if a loop goes through it."""
    others = [link for link in links if link is not bridge]
    whole, left = component(roots, links), component(roots, others)
    return whole - left


def bridges(roots: Iterable[int], links: Sequence[Link]) -> list[tuple[Link, set[int]]]:
    """The links that no loop goes through, and what each alone holds; what holds most comes first."""
    found = [(link, cut_off(link, roots, links)) for link in links]
    return sorted([(link, part) for link, part in found if part], key=lambda entry: -len(entry[1]))
