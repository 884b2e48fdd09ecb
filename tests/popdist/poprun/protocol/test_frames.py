"""Frames between guard and launcher."""

from hypothesis import given
from hypothesis import strategies as st

from popdist.poprun.protocol import frames

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
def test_long_records_come_in_frames_that_a_pipe_writes_whole(payload):
    parts = list(frames.encode_all(7, frames.OUT, payload))
    assert all(len(part) <= 4096 for part in parts)
    assembler = frames.Assembler()
    decoded = [assembler.add(*frame) for frame in frames.Decoder().feed(b"".join(parts))]
    assert decoded == [None] * (len(parts) - 1) + [payload]


def test_records_of_several_instances_are_joined_each_for_itself():
    assembler = frames.Assembler()
    assert assembler.add(0, frames.OUT | frames.MORE, b"a") is None
    assert assembler.add(1, frames.OUT | frames.MORE, b"x") is None
    assert assembler.add(0, frames.ERR, b"!") == b"!"
    assert assembler.add(0, frames.OUT, b"b") == b"ab"
    assert assembler.rest(frames.OUT) == [b"x"]


@given(st.binary(max_size=1000))
def test_lines_have_a_length_that_divides_what_mpirun_carries(payload):
    token = b"0123456789abcdef"
    parts = frames.encode_all(3, frames.ERR, payload, frames.line_room(token))
    lines = [frames.encode_line(part, token) for part in parts]
    assert all(len(line) == frames.LINE_SIZE for line in lines)
    assert 4096 % frames.LINE_SIZE == 0
    assert all(line.find(b"\n") == len(line) - 1 for line in lines)
    assembler = frames.Assembler()
    whole = None
    for line in lines:
        text, frame = frames.decode_line(line, token)
        assert text == b""
        for one in frames.Decoder().feed(frame):
            whole = assembler.add(*one)
    assert whole == payload


@given(st.binary(max_size=300))
def test_other_lines_are_text(line):
    assert frames.decode_line(line, b"0123456789abcdef") == (line, b"")


def test_named_values():
    payload = frames.encode_fields(pid=12, lost="mpirun ended", began="")
    assert frames.decode_fields(payload) == {"pid": "12", "lost": "mpirun ended", "began": ""}
