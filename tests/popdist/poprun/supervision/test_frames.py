"""Frames between guard and launcher."""

from hypothesis import given
from hypothesis import strategies as st

from popdist.poprun.supervision import frames

FRAMES = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(1, 6),
        st.binary(max_size=frames.LARGEST_PAYLOAD),
    ),
    max_size=5,
)


@given(FRAMES, st.lists(st.integers(1, 5000), max_size=20))
def test_frames_survive_any_division_of_the_stream(sent, cuts):
    stream = b"".join(frames.encode(*frame) for frame in sent)
    decoder = frames.Decoder()
    received = []
    for size in [*cuts, len(stream)]:
        received += decoder.feed(stream[:size])
        stream = stream[size:]
    assert received == sent


@given(st.binary(max_size=3 * frames.LARGEST_PAYLOAD))
def test_long_texts_come_in_frames_that_a_pipe_writes_whole(text):
    parts = list(frames.encode_text(7, frames.OUT, frames.OUT_MORE, text))
    assert all(len(part) <= 4096 for part in parts)
    decoded = list(frames.Decoder().feed(b"".join(parts)))
    assert b"".join(payload for _, _, payload in decoded) == text
    kinds = [kind for _, kind, _ in decoded]
    assert kinds == [frames.OUT_MORE] * (len(kinds) - 1) + [frames.OUT]


def test_named_values():
    payload = frames.encode_fields(pid=12, lost="mpirun ended", began="")
    assert frames.decode_fields(payload) == {"pid": "12", "lost": "mpirun ended", "began": ""}
