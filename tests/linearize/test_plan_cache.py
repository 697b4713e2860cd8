"""Plans by key: what a plan depends on is hashed once for each call, however many plans are known."""

from types import SimpleNamespace

from mslsq.linearize.plan_cache import PlanCache, PlanKey


class Counted:
    """Part of a key that counts how often it is hashed."""

    hashed = 0

    def __init__(self, value: int):
        self.value = value

    def __hash__(self) -> int:
        Counted.hashed += 1
        return hash(self.value % 3)  # some of different keys are equal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted) and self.value == other.value


def test_keys_are_equal_where_their_parts_are():
    assert PlanKey(1, ("a", 2)) == PlanKey(1, ("a", 2))
    assert hash(PlanKey(1, ("a", 2))) == hash(PlanKey(1, ("a", 2)))
    assert PlanKey(1, ("a", 2)) != PlanKey(1, ("a", 3))
    assert PlanKey(1, 2) != (1, 2)
    assert PlanKey(Counted(1)) != PlanKey(Counted(4))  # of one hash


def test_what_a_plan_depends_on_is_hashed_once_a_call():
    shared = PlanCache()
    cache, plans = PlanCache(shared=shared), {}
    for number in range(20):
        plans[number] = SimpleNamespace(may_be_shared=True, native=None, execution=SimpleNamespace(graphs={}))
        cache.put(PlanKey(Counted(number)), plans[number])
    Counted.hashed = 0
    key = PlanKey(Counted(7))
    assert cache.get(key) is plans[7] and not cache.has_graphs and not cache.goes_stale(key)
    cache.drop(key)
    assert cache.get(key) is None
    assert Counted.hashed == 1
