"""Anchors and batches per step, and what is refused of them."""

import pytest

from popdist_onnx.errors import popart_exception
from popdist_onnx.types.data_flow import AnchorReturnType, DataFlow
from popdist_onnx.types.enums import AnchorReturnTypeId


def test_return_types_are_named_in_any_case():
    assert AnchorReturnType("ALL") == AnchorReturnType("All") != AnchorReturnType("Sum")
    assert AnchorReturnType("EveryN", 4).rp() == 4
    assert AnchorReturnType("final").id() is AnchorReturnTypeId.Final


@pytest.mark.parametrize(
    "arguments", [("Most",), (3,), ("EveryN",), ("EveryN", 0), ("EveryN", 1.5), ("All", 2)]
)
def test_return_types_that_make_no_sense(arguments):
    with pytest.raises(popart_exception, match="PD508"):
        AnchorReturnType(*arguments)


def test_a_data_flow_tells_what_it_was_told():
    flow = DataFlow(8, {"x": AnchorReturnType("EveryN", 4), "loss": AnchorReturnType("Sum")})
    assert (flow.batchesPerStep(), flow.nAnchors(), flow.anchors()) == (8, 2, ["x", "loss"])
    assert flow.isAnchored("x")
    assert not flow.isAnchored("y")
    assert flow.art("x").rp() == 4
    with pytest.raises(popart_exception, match="'y' is not anchored"):
        flow.art("y")


def test_ids_alone_return_everything():
    assert DataFlow(2, ["x", "y"]).art("y") == AnchorReturnType("All")
    assert DataFlow(2, ["x"], AnchorReturnType("Final")).art("x") == AnchorReturnType("Final")
    assert DataFlow(2).anchors() == []


@pytest.mark.parametrize(
    "arguments",
    [
        (0,),
        (-1,),
        (1.5,),
        (True,),
        (2, "loss"),
        (2, {"x": "All"}),
        (2, {"x": AnchorReturnType("All")}, AnchorReturnType("All")),
        (2, {"x": AnchorReturnType("EveryN", 4)}),
        (4, {"x": AnchorReturnType("EveryN", 3)}),
    ],
)
def test_data_flows_that_make_no_sense(arguments):
    with pytest.raises(popart_exception, match="PD508"):
        DataFlow(*arguments)
