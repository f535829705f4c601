"""Tensor names and shapes of the released checkpoints, from models built on the meta device, for header-only files.

A name may hold one range, `layers.{0-29}.ffn_norm1.weight`, which stands for one tensor a number.
"""
import json
import math
import re

import torch
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3ForCausalLM

from comfy_single_file import map_transformer, map_vae
from common import FIXTURES
from recipe import tensor_list

OUT = FIXTURES / "headers"
QWEN3_4B = dict(vocab_size=151936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
                num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)
FLUX_VAE = dict(down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=16, use_quant_conv=False,
                use_post_quant_conv=False)


def fold(tensors: list) -> list:
    """Joins tensors that differ in their first number only, where the numbers are consecutive."""
    groups = {}
    for name, shape in tensors:
        m = re.search(r"(?<=\.)\d+(?=\.)", name)
        key = (name[: m.start()], name[m.end():], tuple(shape)) if m else (name, None, tuple(shape))
        groups.setdefault(key, []).append(int(m[0]) if m else None)
    out = []
    for (head, tail, shape), numbers in groups.items():
        if tail is None:
            out.append([head, list(shape)])
            continue
        numbers.sort()
        start = numbers[0]
        for n, following in zip(numbers, numbers[1:] + [None]):
            if following != n + 1:
                out.append([head + (str(n) if n == start else f"{{{start}-{n}}}") + tail, list(shape)])
                start = following
    return out


def unfold(tensors: list) -> list:
    out = []
    for name, shape in tensors:
        m = re.search(r"\{(\d+)-(\d+)\}", name)
        names = [name[: m.start()] + str(i) + name[m.end():] for i in range(int(m[1]), int(m[2]) + 1)] if m else [name]
        out += [[n, shape] for n in names]
    return out


def write(name: str, dtype: str, tensors: list) -> None:
    folded = fold(tensors)
    assert sorted(unfold(folded)) == sorted(tensors)
    total = sum(math.prod(s) for _, s in tensors)
    print(f"{name}: {len(tensors)} tensors, {total} parameters")
    lines = ",\n  ".join(json.dumps(t) for t in folded)
    (OUT / f"{name}.json").write_text(
        f'{{\n "dtype": "{dtype}",\n "count": {len(tensors)},\n "parameters": {total},\n "tensors": [\n  {lines}\n ]\n}}\n')


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        transformer = tensor_list(ZImageTransformer2DModel())
        text_encoder = tensor_list(Qwen3ForCausalLM(Qwen3Config(**QWEN3_4B)), skip=("lm_head.weight",))
        vae = tensor_list(AutoencoderKL(**FLUX_VAE))
    original = lambda mapped: [[m["name"], m["shape"]] for m in mapped]  # noqa: E731
    write("z_image_transformer_diffusers", "BF16", transformer)
    write("z_image_transformer_comfy", "BF16", original(map_transformer(transformer)))
    write("qwen3_4b", "BF16", text_encoder)
    write("flux_vae_diffusers", "BF16", vae)
    write("flux_vae_ldm", "F32", original(map_vae(vae)))


if __name__ == "__main__":
    main()
