from popdist.exchange.agreement import ABSENT, Disagreement, compare, listed


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


def test_an_error_shows_the_first_and_counts_the_rest():
    found = [Disagreement(f"fact {number}", ("a", "b")) for number in range(10)]
    lines = listed(found).split("\n    ")
    assert lines[:3] == ["", "fact 0: a on instance 0; b on instance 1", str(found[1])]
    assert lines[9:] == ["and 2 more"]
    assert listed(found[:1]) == f"\n    {found[0]}"
