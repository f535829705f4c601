"""torch.randn of the CPU generator for awkward seeds and sizes, checked against a plain implementation of how it draws."""
import math

import numpy as np
import torch

from common import FIXTURES, save, write_json

SEEDS = [0, 1, 7, 2**32, 2**53 + 1, 2**63, 2**64 - 1]
SHAPES = [(3,), (15,), (16,), (17,), (31,), (32,), (100,), (1, 16, 2, 2), (1, 16, 10, 14)]


class Generator:
    """MT19937 seeded with the low 32 bits; normals by Box-Muller."""

    def __init__(self, seed: int):
        self.bits = np.random.MT19937()
        self.bits._legacy_seeding(seed & 0xFFFFFFFF)
        self.cached = None

    def raw(self, n: int) -> np.ndarray:
        return self.bits.random_raw(n).astype(np.uint64)

    def uniform24(self, n: int) -> np.ndarray:
        return (self.raw(n) & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)

    def uniform53(self) -> float:
        hi, lo = self.raw(2).tolist()  # one 64-bit draw: first output high, second low
        return ((hi << 32 | lo) & ((1 << 53) - 1)) * 2.0**-53

    def scalar(self) -> float:
        if self.cached is not None:
            value, self.cached = self.cached, None
            return value
        u1, u2 = self.uniform53(), self.uniform53()
        r, theta = math.sqrt(-2.0 * math.log1p(-u2)), 2.0 * math.pi * u1
        self.cached = r * math.sin(theta)
        return r * math.cos(theta)

    def randn(self, n: int) -> np.ndarray:
        if n < 16:
            return np.array([self.scalar() for _ in range(n)], np.float32)
        u = self.uniform24(n)
        out = np.empty(n, np.float32)
        starts = list(range(0, n - 15, 16))
        blocks = [(s, u[s : s + 16]) for s in starts]
        if n % 16:  # the last 16 values are drawn anew
            blocks.append((n - 16, self.uniform24(16)))
        for start, b in blocks:
            r = np.sqrt(-2.0 * np.log(1.0 - b[:8].astype(np.float64)))
            theta = (np.float32(2.0 * np.pi) * b[8:]).astype(np.float64)  # the angle is rounded to float32
            out[start : start + 8], out[start + 8 : start + 16] = r * np.cos(theta), r * np.sin(theta)
        return out


def torch_generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def main() -> None:
    tensors, raw = {}, []
    for seed in SEEDS:
        shapes = SHAPES + ([(1, 16, 16, 16)] if seed in (1, 2**64 - 1) else [])
        for shape in shapes:
            t = torch.randn(shape, generator=torch_generator(seed))
            mine = Generator(seed).randn(t.numel())
            assert np.allclose(t.flatten().numpy(), mine, atol=1e-6, rtol=0), (seed, shape)
            tensors[f"{seed}/{'x'.join(map(str, shape))}"] = t
        outputs = Generator(seed).raw(8)
        low = torch.empty(8, dtype=torch.int32).random_(generator=torch_generator(seed))
        assert (outputs & np.uint64(2**31 - 1)).astype(np.int64).tolist() == low.tolist()
        raw.append({"seed": seed, "signed": seed - 2**64 if seed >= 2**63 else seed, "mt19937": outputs.tolist()})
        if seed >= 2**63:
            assert torch.equal(torch.randn(16, generator=torch_generator(seed - 2**64)),
                               torch.randn(16, generator=torch_generator(seed)))

    # several draws of one generator: a large one leaves nothing behind, an odd small one leaves half a pair
    for name, sizes in {"64,64": (64, 64), "3,2,20,1": (3, 2, 20, 1), "20,5": (20, 5)}.items():
        g, mine = torch_generator(1), Generator(1)
        parts = [torch.randn(n, generator=g) for n in sizes]
        assert all(np.allclose(p.numpy(), mine.randn(n), atol=1e-6, rtol=0) for p, n in zip(parts, sizes))
        tensors[f"1/draws {name}"] = torch.cat(parts)
    save(FIXTURES / "noise.safetensors", tensors)
    write_json(FIXTURES / "noise.json", raw)


if __name__ == "__main__":
    main()
