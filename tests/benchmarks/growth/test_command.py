"""The command that prints the model."""

import pytest

from benchmarks.growth import __main__ as command
from benchmarks.growth.curves import Constants
from benchmarks.growth.formulas import Link


def test_it_prints_every_size_of_every_network(monkeypatch, capsys):
    known = Constants(compute=0.04, overhead=1e-4, local=Link(1e-6, 1e-10), cores=2)
    monkeypatch.setattr(command, "newest", lambda: (None, {}))
    monkeypatch.setattr(command, "constants", lambda _: known)
    assert command.main([]) == 0
    out = capsys.readouterr().out
    assert out.count("milliseconds of a step") == 2
    assert out.count("     8192  ") == 2
    assert command.main(["10 Gbit/s"]) == 0
    assert capsys.readouterr().out.count("milliseconds of a step") == 1


def test_without_a_record_it_says_how_to_make_one(monkeypatch, capsys):
    monkeypatch.setattr(command, "newest", lambda: None)
    assert command.main([]) == 1
    assert "python -m benchmarks --record --only growth" in capsys.readouterr().out


def test_an_unknown_network_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["10 Gbit"])
    assert "there are: 10 Gbit/s, 100 Gbit/s" in capsys.readouterr().err
