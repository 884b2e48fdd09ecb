import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.horovod_build.patches import ANY, VersionRange, release

versions = st.lists(st.integers(0, 99), min_size=1, max_size=4).map(
    lambda numbers: ".".join(map(str, numbers))
)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.13.0+cpu", (2, 13)), ("2.15.0.post1", (2, 15)), ("2.3.0a0+git1234", (2, 3)), ("", ())],
)
def test_release_reads_the_leading_numbers(text, numbers):
    assert release(text) == numbers


@given(versions, versions, versions)
def test_a_range_is_half_open(low, high, version):
    inside = version in VersionRange(low, high)
    assert inside == (release(low) <= release(version) < release(high))


@given(versions)
def test_every_version_is_in_the_open_range(version):
    assert version in ANY


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (VersionRange("2.1", "2.13"), ">= 2.1, < 2.13"),
        (VersionRange("3.12"), ">= 3.12"),
        (ANY, "any version"),
    ],
)
def test_a_range_reads_as_words(versions, words):
    assert str(versions) == words
