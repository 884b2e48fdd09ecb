"""What the launcher shows of mpirun's own standard error, in a job on several hosts."""

from popdist.poprun.log import Log
from popdist.poprun.protocol import frames
from popdist.poprun.supervisor.outcome import Ending, Outcome
from popdist.poprun.supervisor.relay import Relay

TOKEN = "secret"
WARNING = b"[h1:7] plm:rsh: Warning: setpgid(9,9) failed in parent with errno=Permission denied(13)"


def record(text):
    frame = frames.encode(0, frames.ERR, text)
    return frames.encode_line(frame, TOKEN.encode())


def test_mpiruns_chatter_is_left_out_and_the_programs_words_stay(capfd):
    relay = Relay(
        Outcome(),
        Log(0),
        TOKEN,
        on_word=lambda _: None,
        on_note=lambda *_: None,
        before_output=lambda: None,
        merges=False,
    )
    relay.on_stderr(b"mpirun: Forwarding signal 10 to job\n" + WARNING + b"\n")
    relay.on_stderr(record(WARNING + b"\n"))  # as a program's own words, they are shown
    relay.on_stderr(WARNING + record(b"a line\n") + b"mpirun has a problem\n")
    relay.finish()
    assert capfd.readouterr().err.encode() == WARNING + b"\na line\nmpirun has a problem\n"


def test_mpiruns_words_are_left_out_once_a_cause_is_known(capfd):
    outcome = Outcome()
    relay = Relay(
        outcome,
        Log(0),
        TOKEN,
        on_word=lambda _: None,
        on_note=lambda *_: None,
        before_output=lambda: None,
        merges=False,
    )
    relay.on_stderr(b"ORTE was unable to reliably start one or more daemons.\n\0")
    outcome.ending = Ending("host", 1, "host h2 has not been heard of for 30 s, so the job ends")
    relay.finish()
    assert capfd.readouterr().err == ""
