"""The comparison with published sources, on sources that were made for it."""

from popdist_tf.compare import Difference, differences

SOURCES = {
    "loops.py": "def repeat(n, body, inputs=None, infeed_queue=None, use_while_v1=True): ...\n",
    "ops/math_ops.py": "def segment_sum(segment_ids, data, num_segments, name=None): ...\n"
    "def segment_product(data): ...\ndef _own(): ...\n",
    "ops/nn_ops.py": "def softmax(x, stable=False, axis=-1): ...\n",
    "ops/tile_ops.py": "class Tile: ...\n",
    "ops/nn_ops_grad.py": "def gradient(): ...\n",
    "tests/loops_test.py": "def test(): ...\n",
    "ipu_outfeed_queue.py": "class IPUOutfeedQueue:\n"
    "    def __init__(self, outfeed_mode=None): ...\n"
    "    def dequeue(self, wait_for_completion=False): ...\n"
    "    def peek(self): ...\n",
    "serving.py": "def export_keras(model): ...\n",
    "config.py": "class _ConfigBase:\n"
    "    def to_dict(self): ...\n"
    "    def to_xml(self): ...\n"
    "class AttributeMetadata:\n"
    "    def __init__(self, depth): ...\n"
    "class IPUConfig(_ConfigBase): ...\n",
    "ipu_infeed_queue.py": "class IPUIterator:\n"
    "    def infeed_spec(self): ...\n"
    "    def next(self): ...\n",
}


def test_differences_are_listed_with_their_kind(tmp_path):
    for name, source in SOURCES.items():
        file = tmp_path / "tensorflow" / "python" / "ipu" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    found = {(one.name, one.kind): one for one in differences(tmp_path)}
    assert set(found) == {
        ("ipu_outfeed_queue.IPUOutfeedQueue.peek", "method"),
        ("ops.math_ops.segment_product", "name"),
        ("ops.math_ops.segment_sum", "order"),
        ("ops.nn_ops.softmax", "argument"),
        ("ops.tile_ops", "module"),
        ("serving", "refused"),
        ("config.IPUConfig.to_xml", "method"),
        ("config.AttributeMetadata", "noted"),
        ("ipu_infeed_queue.IPUIterator.infeed_spec", "refused"),
    }
    assert found["config.AttributeMetadata", "noted"].detail.startswith("depth: `get_attribute_")
    assert found["ops.nn_ops.softmax", "argument"].detail == "axis"
    assert found["serving", "refused"] == Difference(
        "serving", "refused", "Models are served by TensorFlow Serving."
    )
