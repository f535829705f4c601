"""Original (single-file) names of a diffusers Z-Image folder's tensors, checked with diffusers' own converters.

fixtures/z-image-tiny/comfy_map.json gives each tensor of the three files as {name, shape, from}: the recipe's tensors
`from`, joined along the first dimension. With --write DIR the files themselves are written for a try in other programs.
"""
import argparse
import json
import re
from pathlib import Path

import torch
from diffusers.loaders.single_file_utils import (
    convert_ldm_vae_checkpoint,
    convert_z_image_transformer_checkpoint_to_diffusers,
)
from safetensors.torch import save_file

import recipe
from common import FIXTURES

TINY = FIXTURES / "z-image-tiny"

TRANSFORMER_NAMES = [
    (r"^all_(x_embedder|final_layer)\.2-1\.", r"\1."),
    (r"\.attention\.norm_([qk])\.", r".attention.\1_norm."),
    (r"\.attention\.to_out\.0\.", ".attention.out."),
]
VAE_NAMES = [
    (r"\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r".down.\1.block.\2."),
    (r"\.down_blocks\.(\d+)\.downsamplers\.0\.", r".down.\1.downsample."),
    (r"\.up_blocks\.(\d+)\.resnets\.(\d+)\.", r".up.\1.block.\2."),
    (r"\.up_blocks\.(\d+)\.upsamplers\.0\.", r".up.\1.upsample."),
    (r"\.mid_block\.resnets\.0\.", ".mid.block_1."),
    (r"\.mid_block\.resnets\.1\.", ".mid.block_2."),
    (r"\.mid_block\.attentions\.0\.group_norm\.", ".mid.attn_1.norm."),
    (r"\.mid_block\.attentions\.0\.to_([qkv])\.", r".mid.attn_1.\1."),
    (r"\.mid_block\.attentions\.0\.to_out\.0\.", ".mid.attn_1.proj_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
]


def rename(name: str, rules) -> str:
    for pattern, to in rules:
        name = re.sub(pattern, to, name)
    return name


def map_transformer(tensors: list) -> list:
    """q, k and v become one tensor; the rest is renamed."""
    out, shapes = [], {n: s for n, s in tensors}
    for name, shape in tensors:
        if ".attention.to_q." in name:
            parts = [name.replace("to_q", f"to_{p}") for p in "qkv"]
            rows = sum(shapes[p][0] for p in parts)
            out.append({"name": name.replace("to_q", "qkv"), "shape": [rows, shape[1]],
                        "from": [[p, shapes[p]] for p in parts]})
        elif not re.search(r"\.attention\.to_[kv]\.", name):
            out.append({"name": rename(name, TRANSFORMER_NAMES), "shape": shape, "from": [[name, shape]]})
    return out


def map_vae(tensors: list) -> list:
    """Decoder blocks count from the output, the attention's matrices are 1x1 convolutions."""
    blocks = 1 + max(int(m[1]) for n, _ in tensors if (m := re.search(r"up_blocks\.(\d+)", n)))
    out = []
    for name, shape in tensors:
        new = re.sub(r"up_blocks\.(\d+)", lambda m: f"up_blocks.{blocks - 1 - int(m[1])}", name)
        conv = shape + [1, 1] if ".attentions." in name and len(shape) == 2 else shape
        out.append({"name": rename(new, VAE_NAMES), "shape": conv, "from": [[name, shape]]})
    return out


def plain(tensors: list) -> list:
    return [{"name": n, "shape": s, "from": [[n, s]]} for n, s in tensors]


def materialize(mapped: list) -> dict:
    return {m["name"]: torch.cat([recipe.tensor(*f) for f in m["from"]]).reshape(m["shape"]) for m in mapped}


def check(got: dict, tensors: list) -> None:
    assert sorted(got) == sorted(n for n, _ in tensors)
    for name, shape in tensors:
        assert torch.equal(got[name], recipe.tensor(name, shape)), name


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--write", metavar="DIR", help="also write the three files, bf16, below DIR")
    args = args.parse_args()
    lists = {p: json.loads((TINY / p / "tensors.json").read_text()) for p in ("transformer", "text_encoder", "vae")}
    mapped = {"transformer": map_transformer(lists["transformer"]), "text_encoder": plain(lists["text_encoder"]),
              "vae": map_vae(lists["vae"])}
    for prefix in ("", "model.diffusion_model."):
        file = {prefix + k: v for k, v in materialize(mapped["transformer"]).items()}
        file[prefix + "norm_final.weight"] = torch.ones(8)  # some files carry it, unused
        check(convert_z_image_transformer_checkpoint_to_diffusers(file), lists["transformer"])
    config = json.loads((TINY / "vae" / "config.json").read_text())
    check(convert_ldm_vae_checkpoint(materialize(mapped["vae"]), config), lists["vae"])

    lines = [f' "{part}": [\n  ' + ",\n  ".join(json.dumps(m) for m in ms) + "\n ]" for part, ms in mapped.items()]
    (TINY / "comfy_map.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if args.write:
        for part, folder in (("transformer", "diffusion_models"), ("text_encoder", "text_encoders"), ("vae", "vae")):
            path = Path(args.write) / folder / "z_image_tiny.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({k: v.bfloat16() for k, v in materialize(mapped[part]).items()}, path)


if __name__ == "__main__":
    main()
