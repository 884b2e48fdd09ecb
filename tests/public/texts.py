"""Generated sentences for public programs, and small language models; see `data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_RNG = np.random.default_rng(7)


def bert_records(path: str, count: str, length: str = "128", masked: str = "20") -> None:
    """Writes masked sentences as TFRecord with an index, in the form of BERT's pretraining data."""
    from tfrecord.tools.tfrecord2idx import create_index
    from tfrecord.writer import TFRecordWriter

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    writer = TFRecordWriter(path)
    for _ in range(int(count)):
        words = _RNG.integers(5, 200, int(length))
        positions = np.sort(_RNG.choice(int(length), int(masked), replace=False))
        row = {
            "input_ids": np.where(np.isin(np.arange(int(length)), positions), 4, words),
            "input_mask": np.ones(int(length), int),
            "segment_ids": np.arange(int(length)) // (int(length) // 2),
            "masked_lm_positions": positions,
            "masked_lm_ids": words[positions],
            "next_sentence_labels": _RNG.integers(0, 2, 1),
        }
        writer.write({name: (value.tolist(), "int") for name, value in row.items()})
    writer.close()
    create_index(path, path.replace(".tfrecord", ".index"))


def bert_samples(path: str, count: str, length: str, masked: str, words: str) -> None:
    """Writes masked sentences as whole numbers, in the form of the data of PopART's BERT."""
    rows, size, hidden = int(count), int(length), int(masked)
    parts = [
        _RNG.integers(5, int(words), (rows, size)),  # words
        np.tile(np.arange(size), (rows, 1)),  # positions
        np.tile(np.arange(size) // (size // 2), (rows, 1)),  # segments
        np.full((rows, 1), hidden),
        np.full((rows, 1), size),
        _RNG.integers(5, int(words), (rows, hidden)),  # masked words
        _RNG.integers(0, 2, (rows, 1)),  # whether a sentence follows the other
    ]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.concatenate(parts, axis=1).astype(np.uint32).tofile(path)


def merges(path: str) -> None:
    """Writes the merges of a tokenizer of byte pairs, compressed in a file ``name.gz``."""
    import gzip

    text = b"version\nt h\nth e</w>\n"
    Path(path).write_bytes(gzip.compress(text) if path.endswith(".gz") else text)


def distilbert(folder: str, width: str = "32", heads: str = "2") -> None:
    """Writes a small DistilBERT with random weights, and its tokenizer."""
    import torch
    from transformers import DistilBertConfig, DistilBertModel, DistilBertTokenizer

    torch.manual_seed(1)
    place = Path(folder)
    place.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "it", "is", "a", "test", "for", "frozen"]
    place.joinpath("vocab.txt").write_text("\n".join(words))
    DistilBertTokenizer(str(place / "vocab.txt")).save_pretrained(folder)
    config = DistilBertConfig(
        vocab_size=len(words), dim=int(width), n_heads=int(heads), hidden_dim=2 * int(width)
    )
    DistilBertModel(config).save_pretrained(folder)


def bert(name: str, width: str = "32", layers: str = "2", heads: str = "2") -> None:
    """Writes a small BERT with random weights where the download ``name`` would be."""
    import torch
    from transformers import BertConfig, BertForQuestionAnswering, BertTokenizer

    torch.manual_seed(1)
    kept = Path.home() / ".cache/huggingface/hub" / f"models--{name.replace('/', '--')}"
    place = kept / "snapshots" / "0"
    place.mkdir(parents=True)
    kept.joinpath("refs").mkdir()
    kept.joinpath("refs", "main").write_text("0")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?'()-"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{x}" for x in letters)]
    place.joinpath("vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=int(width),
        num_hidden_layers=int(layers),
        num_attention_heads=int(heads),
        intermediate_size=2 * int(width),
    )
    BertForQuestionAnswering(config).save_pretrained(place)


def language_model(folder: str, kind: str, width: str = "32") -> None:
    """Writes a small BERT or GPT-2 with random weights, a tokenizer, and settings for one IPU."""
    import torch
    from transformers import AutoConfig, AutoModel, BertTokenizer

    Path(folder).mkdir(parents=True, exist_ok=True)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]
    words = Path(folder, "vocab.txt")
    words.write_text("\n".join(names) + "\n")
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": len(names)}
    shape |= {"hidden_size": int(width), "max_position_embeddings": 32}
    inner = {"intermediate_size": 64} if kind == "bert" else {"bos_token_id": 2, "eos_token_id": 3}
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **shape, **inner)
    AutoModel.from_config(config).save_pretrained(folder)
    BertTokenizer(str(words), model_max_length=16).save_pretrained(folder)
    ipu_config(folder, "2")


def ipu_config(folder: str, layers: str) -> None:
    """Writes optimum-graphcore's settings for one IPU."""
    content = {
        "layers_per_ipu": [int(layers)],
        "gradient_accumulation_steps": 2,
        "matmul_proportion": 0.2,
    }
    Path(folder, "ipu_config.json").write_text(json.dumps(content))


def labelled(path: str, count: str, length: str = "10") -> None:
    """Writes sentences with one of two labels as JSON lines."""
    rows = [
        {"sentence": " ".join(f"w{word}" for word in words), "label": int(words[0] > 24)}
        for words in _RNG.integers(0, 50, (int(count), int(length)))
    ]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def questions(path: str, count: str) -> None:
    """Writes sentences with a question and its answer as JSON, in the form of SQuAD."""
    rows = []
    for number in range(int(count)):
        words = [f"w{word}" for word in _RNG.integers(0, 50, 8)]
        start = len(" ".join(words[:3])) + 1
        answers = {"text": [words[3]], "answer_start": [start]}
        row = {"id": str(number), "context": " ".join(words), "question": words[3]}
        rows.append({**row, "answers": answers})
    Path(path).write_text(json.dumps({"data": rows}))


def endings(path: str, count: str) -> None:
    """Writes sentences with four endings as JSON lines, in the form of SWAG."""
    rows = (
        {
            "sent1": _sentence(4),
            "sent2": _sentence(1),
            "label": int(_RNG.integers(4)),
            **{f"ending{number}": _sentence(2) for number in range(4)},
        }
        for _ in range(int(count))
    )
    _write_rows(path, rows)


def tagged(path: str, count: str) -> None:
    """Writes words with tags as JSON lines, in the form of CoNLL."""
    names = np.array(["O", "B-PER", "I-PER"])
    rows = ((_sentence(6).split(), _RNG.choice(names, 6).tolist()) for _ in range(int(count)))
    _write_rows(path, ({"tokens": words, "ner_tags": tags} for words, tags in rows))


def pairs(path: str, count: str, *languages: str) -> None:
    """Writes pairs of texts as JSON lines: a text with its summary, or two languages."""
    texts = ((_sentence(8), _sentence(3)) for _ in range(int(count)))
    if languages:
        _write_rows(path, ({"translation": dict(zip(languages, t, strict=True))} for t in texts))
    else:
        _write_rows(path, ({"text": text, "summary": summary} for text, summary in texts))


def _sentence(length: int) -> str:
    return " ".join(f"w{word}" for word in _RNG.integers(0, 50, length))


def _write_rows(path: str, rows: Iterator[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def seq2seq_model(folder: str, width: str = "32") -> None:
    """Writes a small BART with random weights, a tokenizer, and settings for one IPU."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

    torch.manual_seed(1)
    names = ["<s>", "<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(50))]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    words = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=16, **special)
    config = BartConfig(
        vocab_size=len(names),
        d_model=int(width),
        max_position_embeddings=32,
        **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 64 for part in ("encoder", "decoder")},
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    words.save_pretrained(folder)
    ipu_config(folder, "2")


def metric(name: str) -> None:
    """Writes a metric, which would be downloaded, as a file: the share of right answers."""
    Path(name).mkdir(parents=True)
    Path(name, f"{name}.py").write_text(_METRIC)


_METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        whole = datasets.Value("int64")
        features = datasets.Features({"predictions": whole, "references": whole})
        return evaluate.MetricInfo(
            description="share of right answers", citation="", features=features
        )

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        return {"accuracy": sum(seen == right for seen, right in pairs) / len(pairs)}
"""


def text(path: str, count: str) -> None:
    """Writes random words with ``count`` characters in all."""
    words = np.array(["what", "light", "is", "this", "the", "east", "and", "sun"])
    Path(path).write_text(" ".join(_RNG.choice(words, int(count) // 2))[: int(count)])
