"""What ``popdist-sdk check`` predicted of the TensorFlow programs is what was seen."""

from tests.public import page
from tests.public.manifest import read_all


def test_the_check_predicted_each_recorded_result():
    records = page.recorded("tensorflow")
    wrong = {
        key: (record["predicted"], record["verdict"])
        for key, record in records.items()
        if (record["predicted"] == "fine") != (record["verdict"] in page.GOOD)
    }
    assert not wrong


def test_each_program_with_a_command_has_a_result():
    (file,) = (file for file in read_all() if file.name == "tensorflow")
    records = page.recorded("tensorflow")
    without = [one.key for one in file.programs if one.command and one.key not in records]
    assert not without
