"""Every operator at every opset: forward and gradient, beside torch and ONNX's own evaluator."""

import onnx
import pytest

from popdist_onnx.builder.graphcore_methods import METHODS
from tests.popdist_onnx.conformance.case import OPSETS
from tests.popdist_onnx.conformance.cases import (
    ELSEWHERE,
    EXCLUDED,
    WITHOUT_CASE,
    all_cases,
    opsets_of,
    version,
)
from tests.popdist_onnx.conformance.graphcore import ELSEWHERE as GRAPHCORE_ELSEWHERE
from tests.popdist_onnx.conformance.graphcore import WITHOUT_CASE as GRAPHCORE_WITHOUT_CASE
from tests.popdist_onnx.conformance.graphcore import graphcore_cases
from tests.popdist_onnx.conformance.runner import mismatch, run
from tests.popdist_onnx.conformance.typed import FLOATS, INTEGERS, typed_cases

CASES = all_cases()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", OPSETS)
def test_operators_agree(opset):
    compare([case for case in CASES if opset in opsets_of(case)], opset)


@pytest.mark.filterwarnings("ignore")
def test_operators_of_graphcore_agree():
    compare(graphcore_cases(), 10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_operators_agree_in_other_types(dtype):
    by_opset = {}
    for case, opset in typed_cases(dtype):
        by_opset.setdefault(opset, []).append(case)
    for opset, cases in by_opset.items():
        compare(cases, opset)


def compare(chosen, opset):
    try:
        results = run(chosen, opset)
    # One that cannot be built or run fails all: find it.
    except Exception:  # noqa: BLE001 - whatever one of them raises
        results = None
    complaints = []
    for number, case in enumerate(chosen):
        shapes = [None if one is None else one.shape for one in case.inputs]
        what = f"{case.op_type} {dict(case.attributes)} of {case.dtype} {shapes}"
        try:
            made = run([case], opset)[0] if results is None else results[number]
            wrong = mismatch(case, opset, *made)
        except Exception as error:  # noqa: BLE001 - a complaint like any other
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None:
            complaints.append(f"{what}: {wrong}")
    assert not complaints, "\n".join(complaints)


def offered(opset):
    names = {one.name for one in onnx.defs.get_all_schemas_with_history() if not one.domain}
    return [name for name in sorted(names) if version(name, opset)]


@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_and_attribute_has_a_case_or_a_reason(opset):
    missing = []
    for name in offered(opset):
        if name in ELSEWHERE or name in EXCLUDED:
            continue
        cases = [
            case for case in CASES if case.op_type == name and case.since <= opset <= case.until
        ]
        if not cases and (name, opset) != ("Upsample", 6):
            missing.append(name)
        for attribute in onnx.defs.get_schema(name, opset, "").attributes:
            given = any(attribute in case.attributes for case in cases)
            if not given and (name, attribute) not in WITHOUT_CASE:
                missing.append(f"{name}.{attribute}")
    assert missing == []


def test_no_operator_is_excluded_that_has_a_case():
    assert not {case.op_type for case in CASES} & (set(EXCLUDED) | set(ELSEWHERE))


def test_every_operator_and_argument_of_graphcore_has_a_case_or_a_reason():
    given = {}
    for case in graphcore_cases():
        given.setdefault(case.op_type, set()).update(case.attributes)
    missing = []
    for method in METHODS:
        if method.op_type in GRAPHCORE_ELSEWHERE:
            assert method.op_type not in given
            continue
        wanted = {one.attribute for one in method.parameters} - {
            argument for name, argument in GRAPHCORE_WITHOUT_CASE if name == method.op_type
        }
        lost = wanted - given.get(method.op_type, set())
        missing += [f"{method.op_type}.{one}" for one in sorted(lost)]
        missing += [] if method.op_type in given else [method.op_type]
    assert missing == []
