"""What ``popdist-sdk check`` predicted of the TensorFlow programs is what was seen."""

from tests.public import page


def test_the_check_predicted_each_recorded_result():
    wrong = {
        key: (record["predicted"], record["verdict"])
        for key, record in page.recorded("tensorflow").items()
        if (record["predicted"] == "fine") != (record["verdict"] in page.GOOD)
    }
    assert not wrong
