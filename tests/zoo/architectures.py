"""The architectures of the zoo: small, with random weights, made without a download."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import Any

import torch
from torch import nn

SAMPLES, LENGTH, VOCABULARY, CLASSES, PIXELS = 4, 12, 97, 5, 32

TEXT = [
    "albert",
    "bert",
    "big_bird",
    "bloom",
    "biogpt",
    "codegen",
    "cohere",
    "cohere2",
    "cohere_compass_text",
    "convbert",
    "ctrl",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "falcon",
    "fnet",
    "gemma",
    "gemma2",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "granite",
    "ibert",
    "llama",
    "mamba",
    "megatron-bert",
    "mistral",
    "mixtral",
    "modernbert",
    "mpnet",
    "mpt",
    "nystromformer",
    "olmo",
    "olmo2",
    "openai-gpt",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "roberta",
    "roformer",
    "rwkv",
    "smollm3",
    "squeezebert",
    "stablelm",
    "starcoder2",
    "xlm",
    "xlnet",
]
"""Types of `transformers` that read tokens."""

PAIRS = ["bart", "marian", "mt5", "t5"]
"""Types of `transformers` with an encoder and a decoder."""

IMAGES = [
    "beit",
    "bit",
    "convnext",
    "convnextv2",
    "cvt",
    "dinov2",
    "focalnet",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilevit",
    "poolformer",
    "pvt",
    "regnet",
    "resnet",
    "segformer",
    "swin",
    "swinv2",
    "vit",
]
"""Types of `transformers` that read pictures."""

SOUND = ["hubert", "sew", "wav2vec2", "wavlm"]
"""Types of `transformers` that read waveforms."""

TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "cait_xxs24_224": {"img_size": 64, "depth": 2},
    "convnext_atto": {"depths": (1, 1, 1, 1)},
    "convnextv2_atto": {"depths": (1, 1, 1, 1)},
    "deit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "densenet121": {"block_config": (2, 2, 2, 2)},
    "dla46_c": {},
    "edgenext_xx_small": {},
    "efficientnet_lite0": {},
    "ese_vovnet19b_dw": {},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "ghostnet_050": {},
    "gmlp_ti16_224": {"img_size": 64},
    "inception_next_atto": {"depths": (1, 1, 1, 1)},
    "lcnet_035": {},
    "legacy_seresnet18": {},
    "mixer_s32_224": {"img_size": 64},
    "mnasnet_small": {},
    "mobilenetv2_035": {},
    "mobilenetv3_small_050": {},
    "mobilenetv4_conv_small_035": {},
    "poolformer_s12": {},
    "regnetx_002": {},
    "regnety_002": {},
    "repvgg_a0": {},
    "resmlp_12_224": {"img_size": 64},
    "resnest14d": {},
    "resnet10t": {},
    "resnetv2_50": {"layers": (1, 1, 1, 1), "channels": (32, 64, 96, 128), "stem_chs": 16},
    "skresnet18": {},
    "starnet_s1": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": 64,
        "window_size": 4,
        "embed_dim": 24,
        "depths": (2, 2),
        "num_heads": (2, 4),
    },
    "test_byobnet": {},
    "test_efficientnet": {},
    "test_mambaout": {},
    "test_nfnet": {},
    "test_vit": {},
    "tinynet_e": {},
    "visformer_tiny": {"img_size": 64},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2},
}
"""Architectures of `timm` with what makes them small."""

_BACKBONE = {"weights_backbone": None}

TORCHVISION: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    name: (place, settings, shape)
    for shape, models in {
        (3, 64, 64): {
            "alexnet": ("alexnet.alexnet", {}),
            "convnext_tiny": ("convnext.convnext_tiny", {}),
            "deeplabv3_mobilenet_v3_large": (
                "segmentation.deeplabv3_mobilenet_v3_large", _BACKBONE,
            ),
            "densenet": (
                "densenet.DenseNet",
                {"growth_rate": 8, "block_config": (2, 2, 2, 2), "num_init_features": 16},
            ),
            "efficientnet_b0": ("efficientnet.efficientnet_b0", {}),
            "efficientnet_v2_s": ("efficientnet.efficientnet_v2_s", {}),
            "lraspp_mobilenet_v3_large": ("segmentation.lraspp_mobilenet_v3_large", _BACKBONE),
            "maxvit": (
                "maxvit.MaxVit",
                {
                    "input_size": (64, 64), "stem_channels": 16, "partition_size": 4,
                    "block_channels": [16, 32], "block_layers": [1, 1], "head_dim": 8,
                    "stochastic_depth_prob": 0.0,
                },
            ),
            "mnasnet0_5": ("mnasnet.mnasnet0_5", {}),
            "mobilenet_v2": ("mobilenetv2.mobilenet_v2", {"width_mult": 0.35}),
            "mobilenet_v3_large": ("mobilenetv3.mobilenet_v3_large", {}),
            "mobilenet_v3_small": ("mobilenetv3.mobilenet_v3_small", {}),
            "regnet_y_400mf": ("regnet.regnet_y_400mf", {}),
            "resnet18": ("resnet.resnet18", {}),
            "shufflenet_v2_x1_0": ("shufflenetv2.shufflenet_v2_x1_0", {}),
            "shufflenet_v2_x0_5": ("shufflenetv2.shufflenet_v2_x0_5", {}),
            "squeezenet1_0": ("squeezenet.squeezenet1_0", {}),
            "squeezenet1_1": ("squeezenet.squeezenet1_1", {}),
            "swin": (
                "swin_transformer.SwinTransformer",
                {
                    "patch_size": [4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4],
                    "window_size": [4, 4], "stochastic_depth_prob": 0.0,
                },
            ),
            "swin_v2_t": ("swin_transformer.swin_v2_t", {}),
            "vit": (
                "vision_transformer.VisionTransformer",
                {
                    "image_size": 64, "patch_size": 16, "num_layers": 2, "num_heads": 2,
                    "hidden_dim": 32, "mlp_dim": 48,
                },
            ),
        },
        (3, 8, 32, 32): {
            "mc3_18": ("video.mc3_18", {}),
            "r3d_18": ("video.r3d_18", {}),
            "swin3d": (
                "video.swin_transformer.SwinTransformer3d",
                {
                    "patch_size": [2, 4, 4], "embed_dim": 24, "depths": [2, 2],
                    "num_heads": [2, 4], "window_size": [2, 4, 4], "stochastic_depth_prob": 0.0,
                },
            ),
        },
    }.items()
    for name, (place, settings) in models.items()
}  # fmt: skip
"""Networks of `torchvision.models`: place, what makes them small, and the shape of an input."""

_SMALL: dict[str, Any] = {
    "adaptor_hidden_size": 32, "attn_hidden_size": 32, "attention_hidden_size": 32,
    "conv_dim": (16, 16), "conv_kernel": (4, 4), "conv_stride": (4, 4),
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "bos_token_id": 1, "d_ff": 48, "d_inner": 48, "d_kv": 8, "d_model": 32,
    "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "decoder_layers": 2, "dff": 48, "dim": 32,
    "embedding_size": 32, "embed_dim": 32, "emb_dim": 32, "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "encoder_layers": 2, "eos_token_id": 2, "ffn_dim": 48,
    "ffn_hidden_size": 48, "head_dim": 8, "hidden_dim": 48, "hidden_size": 32, "image_size": PIXELS,
    "intermediate_size": 48, "is_decoder": False, "max_position_embeddings": 64,
    "moe_intermediate_size": 16, "n_ctx": 64, "n_embd": 32, "n_head": 4, "n_heads": 4, "n_layer": 2,
    "n_layers": 2, "n_positions": 64, "num_attention_heads": 4, "num_codevector_groups": 2,
    "num_decoder_layers": 2, "num_experts": 4, "num_experts_per_tok": 2, "num_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_labels": CLASSES, "num_layers": 2,
    "num_local_experts": 4, "pad_token_id": 0, "patch_size": 8, "rotary_dim": 4,
    "type_vocab_size": 2, "use_cache": False, "vocab_size": VOCABULARY, "apply_spec_augment": False,
    "window_size": 4, "sliding_window": None,
}  # fmt: skip
"""Settings of configurations, by name, that make an architecture small."""

_SPECIAL: dict[str, dict[str, Any]] = {
    "beit": {"window_size": None},
    "big_bird": {"attention_type": "original_full"},
    "bit": {"hidden_sizes": [16, 24, 32], "depths": [1, 1, 1], "embedding_size": 16,
            "num_groups": 4},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
        "layer_types": ["full_attention"] * 2, "sliding_window": 4,
    },
    "cohere2": {"sliding_window": 16},
    "convnext": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "patch_size": 4},
    "convnextv2": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "patch_size": 4},
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4],
            "depth": [1, 2, 3], "patch_sizes": [7, 3, 3]},
    "data2vec-vision": {"window_size": None},
    "deberta": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "deberta-v2": {"pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    "focalnet": {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "patch_size": 4,
                 "focal_levels": [2, 2], "focal_windows": [3, 3]},
    "gemma2": {"sliding_window": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 6},
    "mamba": {"conv_kernel": 4},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 8},
    "pvt": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 4]},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 32},
    "mobilenet_v2": {"depth_multiplier": 0.35, "image_size": 32},
    "mobilevit": {"hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 48],
                  "patch_size": 2, "image_size": 64},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": LENGTH},
    "poolformer": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "patch_size": 16},
    "regnet": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "embedding_size": 16,
               "groups_width": 8},
    "resnet": {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "embedding_size": 16},
    "segformer": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
                  "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 2},
    "swinv2": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 2},
}  # fmt: skip
"""What single types need beside `_SMALL`."""

_HEADS = (
    "SequenceClassification",
    "CausalLM",
    "MaskedLM",
    "ImageClassification",
    "Seq2SeqLM",
    "AudioClassification",
)

_PIXELS_OF_TIMM = 64


class Inputs(nn.Module):
    """A model of `transformers` as a function from tensors to its scores."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], *, masked: bool) -> None:
        super().__init__()
        self.model, self.names, self.masked = model, names, masked

    def forward(self, first, *rest):
        """The scores, or the last hidden states where the model has no head."""
        given = dict(zip(self.names, (first, *rest), strict=True))
        if self.masked:
            given["attention_mask"] = torch.ones_like(first)
        found = self.model(**given, return_dict=True)
        return found["logits"] if "logits" in found else found["last_hidden_state"]


def of_transformers(kind: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A small random model of a type, and inputs for it."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[kind]
    known = set(inspect.signature(cls.__init__).parameters)
    config = cls(**{**{n: v for n, v in _SMALL.items() if n in known}, **_SPECIAL.get(kind, {})})
    for name, value in list(vars(config).items()):
        if ("drop" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(config, name, 0.0)
    config.num_labels = CLASSES
    config.use_cache = False
    # Grouped products of matrices, the default of experts, have no kernel for float64; a loop over
    # the experts that rows have chosen cannot be exported.
    config._experts_implementation = "batched_mm"
    # A classifier of an encoder and a decoder looks for ends of sentences.
    names = ("Seq2SeqLM",) if kind in PAIRS else _HEADS
    heads = (getattr(transformers, f"AutoModelFor{head}") for head in names)
    auto = next((h for h in heads if cls in h._model_mapping), transformers.AutoModel)
    model = _without_dropout(auto.from_config(config, attn_implementation="eager"))
    rng = torch.Generator().manual_seed(1)
    if kind in IMAGES:
        pixels = config.image_size if isinstance(getattr(config, "image_size", None), int) else 32
        images = torch.randn(SAMPLES, 3, pixels, pixels, generator=rng)
        return Inputs(model, ("pixel_values",), masked=False), (images,)
    if kind in SOUND:
        sound = torch.randn(SAMPLES, 640, generator=rng)
        return Inputs(model, ("input_values",), masked=False), (sound,)
    tokens = [torch.randint(3, VOCABULARY, (SAMPLES, LENGTH), generator=rng) for _ in range(2)]
    if kind in PAIRS:
        names = ("input_ids", "decoder_input_ids")
        return Inputs(model, names, masked=True), tuple(tokens)
    masked = "attention_mask" in inspect.signature(model.forward).parameters
    return Inputs(model, ("input_ids",), masked=masked), (tokens[0],)


def declare_operators() -> None:
    """Lets both packages import a torchvision that was built for another torch (with CUDA).

    Its own library does not load then, and its import ends at the first operator of that library.
    """
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )


def of_timm(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A small random model by its name, and pictures for it."""
    import timm

    settings = dict(TIMM[name])
    pixels = settings.get("img_size", _PIXELS_OF_TIMM)
    model = _without_dropout(timm.create_model(name, num_classes=CLASSES, **settings))
    rng = torch.Generator().manual_seed(1)
    return model, (torch.randn(SAMPLES, 3, pixels, pixels, generator=rng),)


class Scores(nn.Module):
    """A network of torchvision without what a segmentation gives beside its scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images):
        """The scores."""
        found = self.model(images)
        return found["out"] if isinstance(found, dict) else found


def of_torchvision(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A small random model by its name, and pictures or films for it."""
    place, settings, shape = TORCHVISION[name]
    make = resolve_name(f"torchvision.models.{place}")
    model = _without_dropout(make(num_classes=CLASSES, **settings))
    rng = torch.Generator().manual_seed(1)
    return Scores(model), (torch.randn(SAMPLES, *shape, generator=rng),)


MAKERS = {"transformers": of_transformers, "timm": of_timm, "torchvision": of_torchvision}
"""The function of each family that makes a small model by its name, and inputs."""


def _without_dropout(model: nn.Module) -> nn.Module:
    for one in model.modules():
        for name in ("p", "drop_prob", "drop_rate", "layerdrop"):
            drops = "Drop" in type(one).__name__ or "StochasticDepth" in type(one).__name__
            if isinstance(getattr(one, name, None), float) and drops:
                setattr(one, name, 0.0)
    return model
