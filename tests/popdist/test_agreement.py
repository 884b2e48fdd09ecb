"""Facts are compared over instances, and who differs is said; `tests/distributed` has real jobs."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from hypothesis import given
from hypothesis import strategies as st

from popdist.agreement import ABSENT, Disagreement, compare, digest, disagreements, listed


def asked(instances):
    """Asks as so many instances do at the same time; also what travelled between them."""
    meet, sent = Barrier(len(instances)), {}

    def ask(index):
        turns = iter(range(9))

        def gather(content):
            turn = next(turns)
            sent[turn, index] = content
            meet.wait(timeout=10)
            return [sent[turn, other] for other in range(len(instances))]

        return disagreements(instances[index], gather)

    with ThreadPoolExecutor(len(instances)) as pool:
        return list(pool.map(ask, range(len(instances)))), sent


TEXT = st.text(max_size=6)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=4), min_size=1, max_size=3))
def test_all_instances_find_what_a_comparison_in_one_place_finds(instances):
    answers, sent = asked(instances)
    assert answers == [compare(instances)] * len(instances)
    for turn in {turn for turn, _ in sent}:
        assert len({len(sent[turn, index]) for index in range(len(instances))}) == 1


@given(st.lists(st.dictionaries(TEXT, TEXT), min_size=1, max_size=4))
def test_exactly_the_facts_that_differ_are_found(instances):
    names = {name for facts in instances for name in facts}
    differ = {n for n in names if len({facts.get(n, ABSENT) for facts in instances}) > 1}
    assert {row.name for row in compare(instances)} == differ


def test_equal_facts_cost_one_exchange():
    _, sent = asked([{"a": "1" * 1000}] * 3)
    assert {turn for turn, _ in sent} == {0}
    assert {len(content) for content in sent.values()} == {40}


def test_equal_facts_are_no_disagreement():
    assert compare([{"a": "1", "b": "2"}, {"b": "2", "a": "1"}]) == []


def test_every_differing_fact_is_listed_with_what_each_instance_says():
    found = compare([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "2"}])
    assert found == [Disagreement("b", ("2", "3", "2"))]


def test_a_fact_that_an_instance_lacks_is_a_disagreement():
    assert compare([{}, {"a": "1"}]) == [Disagreement("a", (ABSENT, "1"))]


def test_a_disagreement_reads_as_a_sentence():
    assert str(Disagreement("lr", ("0.1", "0.2", "0.1"))) == (
        "lr: 0.1 on instance 0, 2; 0.2 on instance 1"
    )


@given(st.text("ab", max_size=400), st.text("ab", max_size=400))
def test_long_values_are_shown_where_they_differ(start, end):
    first, second = Disagreement("x", (f"{start}1{end}", f"{start}2{end}")).says.split("; ")
    assert "1" in first.removesuffix(" on instance 0")
    assert "2" in second.removesuffix(" on instance 1")
    assert len(first) < 230


def test_an_error_shows_the_first_and_counts_the_rest():
    found = [Disagreement(f"fact {number}", ("a", "b")) for number in range(10)]
    lines = listed(found).split("\n    ")
    assert lines[:3] == ["", "fact 0: a on instance 0; b on instance 1", str(found[1])]
    assert lines[9:] == ["and 2 more"]
    assert listed(found[:1]) == f"\n    {found[0]}"


@given(st.binary(), st.binary())
def test_digests_are_equal_where_contents_are(one, other):
    assert (digest(one) == digest(bytearray(other))) == (one == other)
    assert len(digest(one)) == 16
