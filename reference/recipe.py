"""Weights computed from a tensor's name and shape, so that fixtures hold outputs only.

The definition is in README.md; the Rust twin is crates/contracts/conformance/src/recipe.rs. Both give the same bits.
"""
import json
import math

import numpy as np
import torch

MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def fnv1a64(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def uniform(name: str, count: int) -> np.ndarray:
    """`count` float64 values in [-1, 1): the top 24 bits of each output of splitmix64 seeded with the name's hash."""
    with np.errstate(over="ignore"):
        z = np.uint64(fnv1a64(name.encode())) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def tensor(name: str, shape) -> torch.Tensor:
    """The float32 tensor called `name`."""
    u = uniform(name, math.prod(shape))
    if name.endswith("bias"):
        v = 0.1 * u
    elif len(shape) < 2:  # norm weights
        v = 1.0 + 0.1 * u
    else:  # unit gain for a fan-in of shape[1] x kernel
        v = u * math.sqrt(3.0 / math.prod(shape[1:]))
    return torch.from_numpy(v.astype(np.float32).reshape(shape))


def tensor_list(module: torch.nn.Module, prefix: str = "", skip=()) -> list:
    """[[name, shape], ...] of a module's parameters and persistent buffers, in state-dict order."""
    return [[prefix + n, list(t.shape)] for n, t in module.state_dict().items() if n not in skip]


def fill(module: torch.nn.Module, prefix: str = "") -> torch.nn.Module:
    """Sets every parameter from the recipe, under the name it has in a checkpoint (`prefix` + state-dict name)."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(tensor(prefix + name, p.shape))
    return module.eval()


def save_tensor_list(path, tensors) -> None:
    """One [name, shape] a line, readable and diffable."""
    with open(path, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(t) for t in tensors) + "\n]\n")


def checks() -> list:
    """Bit patterns and hashes that pin both implementations."""
    cases = [
        ("layers.0.attention.to_q.weight", [256, 256]),
        ("layers.0.attention.to_q.bias", [7]),
        ("layers.0.attention_norm1.weight", [192]),
        ("decoder.conv_in.weight", [16, 16, 3, 3]),
        ("x_pad_token", [1, 96]),
        ("model.embed_tokens.weight", [1536, 96]),
        ("é.weight", [3, 682]),
        ("", [2, 2]),
    ]
    out = []
    for name, shape in cases:
        t = tensor(name, shape)
        bits = t.flatten().view(torch.int32).numpy().view(np.uint32)
        hashes = {
            d: f"{fnv1a64(t.to(dt).contiguous().view(torch.uint8).numpy().tobytes()):016x}"
            for d, dt in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16))
        }
        out.append({"name": name, "shape": shape, "seed": f"{fnv1a64(name.encode()):016x}",
                    "first_bits": [int(b) for b in bits[:4]], "last_bits": int(bits[-1]),
                    "first_values": [float(v) for v in t.flatten()[:4]], "fnv1a64_of_bytes": hashes})
    return out


if __name__ == "__main__":
    from common import FIXTURES, write_json

    write_json(FIXTURES / "recipe.json", checks())
