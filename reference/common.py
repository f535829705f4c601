"""What every fixture script shares: paths, determinism, writing."""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
DEMO = ROOT / "assets" / "demo"

# One thread: the order of float additions, and so the last bits, don't depend on the machine's cores.
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def save(path: Path, tensors: dict, **metadata: str) -> None:
    """A safetensors file, contiguous tensors sorted by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = {k: tensors[k].detach().clone().contiguous() for k in sorted(tensors)}
    save_file(out, path, {k: str(v) for k, v in metadata.items()})


def rel_err(a: torch.Tensor, b: torch.Tensor) -> float:
    """|a - b| / |b| in the Euclidean norm."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm()).item()
