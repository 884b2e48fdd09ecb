from popdist.exchange.agreement import ABSENT, Disagreement, compare


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
