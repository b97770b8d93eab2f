"""Tiny models with images, under the names that TRL's tests load: configuration and processor.

Sizes are TRL's own where every parameter has to move, images small. Processors need torchvision.
"""

from typing import Any

#: Names of TRL's tiny vision models: family in Transformers, chat template of TRL.
VISION = {
    "tiny-Gemma3ForConditionalGeneration": ("Gemma3", "gemma3"),
    "tiny-LlavaForConditionalGeneration": ("Llava", "llava_next"),
    "tiny-LlavaNextForConditionalGeneration": ("LlavaNext", "llava_next"),
    "tiny-Qwen2VLForConditionalGeneration": ("Qwen2VL", "qwen2_5_vl"),
    "tiny-Qwen2_5_VLForConditionalGeneration": ("Qwen2_5_VL", "qwen2_5_vl"),
    "tiny-Qwen3_5ForConditionalGeneration-NoThink": ("Qwen3_5", "qwen3_5_nothink"),
    "tiny-Qwen3_5MoeForConditionalGeneration-3.6": ("Qwen3_5Moe", "qwen3_6"),
}
_QWEN = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
}  # fmt: skip
_GEMMA = {
    "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}  # fmt: skip
#: Tokens that stand for an image, by the attribute of a tokenizer that a processor reads.
MARKS = {
    "Gemma3": _GEMMA, "Llava": {"image_token": "<image>"}, "LlavaNext": {"image_token": "<image>"},
    "Qwen2VL": _QWEN, "Qwen2_5_VL": _QWEN, "Qwen3_5": _QWEN, "Qwen3_5Moe": _QWEN,
}  # fmt: skip

TEXT = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
TOWER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 56, "patch_size": 14,
}  # fmt: skip


def config_and_processor(family: str, tokenizer: Any, shared: dict[str, Any]) -> tuple[Any, Any]:
    """The configuration and the processor of one family's tiny model."""
    marks = {name: tokenizer.convert_tokens_to_ids(token) for name, token in MARKS[family].items()}
    text = {**TEXT, **shared}
    if family == "Gemma3":
        return _gemma3(tokenizer, text, marks)
    if family.startswith("Llava"):
        return _llava(family, tokenizer, text, marks)
    ids = {f"{name}_id": number for name, number in marks.items()}
    build = _qwen2 if family.startswith("Qwen2") else _qwen3_5
    return build(family, tokenizer, text, ids)


def _gemma3(tokenizer: Any, text: dict[str, Any], marks: dict[str, int]) -> tuple[Any, Any]:
    import transformers

    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3Config(
        text_config={**text, "head_dim": 8, "layer_types": layers},
        vision_config={**TOWER, "vision_use_head": False},  # Gemma pools no image
        mm_tokens_per_image=4,
        boi_token_index=marks["boi_token"],
        eoi_token_index=marks["eoi_token"],
        image_token_index=marks["image_token"],
    )
    images = transformers.Gemma3ImageProcessor(size={"height": 56, "width": 56})
    return config, transformers.Gemma3Processor(images, tokenizer, image_seq_length=4)


def _llava(family: str, tokenizer: Any, text: dict[str, Any], marks: Any) -> tuple[Any, Any]:
    import transformers

    grid: dict[str, Any] = (
        {} if family == "Llava" else {"image_grid_pinpoints": [[56, 112], [112, 56]]}
    )
    config = getattr(transformers, f"{family}Config")(
        text_config={"model_type": "mistral", **text},
        vision_config={"model_type": "clip_vision_model", **TOWER},
        image_token_index=marks["image_token"],
        **grid,
    )
    cls = (
        transformers.CLIPImageProcessor
        if family == "Llava"
        else transformers.LlavaNextImageProcessor
    )
    crop = {"height": 56, "width": 56}
    processor = getattr(transformers, f"{family}Processor")(
        cls(size={"shortest_edge": 56}, crop_size=crop, **grid),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return config, processor


def _qwen2(family: str, tokenizer: Any, text: dict[str, Any], ids: Any) -> tuple[Any, Any]:
    import transformers

    rope = {"rope_type": "default", "mrope_section": [1, 1], "rope_theta": 1e6}
    tower: dict[str, Any] = {"hidden_size": 16, "depth": 2, "num_heads": 4}
    if family == "Qwen2VL":
        tower["embed_dim"] = 64
    else:
        tower.update(intermediate_size=32, out_hidden_size=16, fullatt_block_indexes=[1])
    config = getattr(transformers, f"{family}Config")(
        text_config={**text, "rope_parameters": rope}, vision_config=tower, **ids
    )
    pixels: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 56 * 56}
    images = transformers.Qwen2VLImageProcessor(**pixels)
    videos = transformers.Qwen2VLVideoProcessor(**pixels)
    return config, getattr(transformers, f"{family}Processor")(images, tokenizer, videos)


def _qwen3_5(family: str, tokenizer: Any, text: dict[str, Any], ids: Any) -> tuple[Any, Any]:
    import transformers

    text = {**text, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
    if family == "Qwen3_5Moe":
        text.update(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
        text.update(shared_expert_intermediate_size=32)
    tower = {
        "hidden_size": 16, "depth": 2, "num_heads": 4, "intermediate_size": 32,
        "out_hidden_size": 16, "num_position_embeddings": 64,
    }  # fmt: skip
    config = getattr(transformers, f"{family}Config")(text_config=text, vision_config=tower, **ids)
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    images = transformers.Qwen2VLImageProcessor(patch_size=16, size=size)
    videos = transformers.Qwen3VLVideoProcessor(size=size)
    return config, transformers.Qwen3VLProcessor(images, tokenizer, videos)
