"""Makes everything below fixtures/ again: python reference/make_fixtures.py"""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# in order: the single-file names read the tensor lists that z_image.py writes
SCRIPTS = ["recipe", "z_image", "demo_golden", "tokens", "noise", "schedule", "samplers", "comfy_single_file", "llm", "bert", "header_lists"]

for script in SCRIPTS:
    print(f"== {script}", flush=True)
    subprocess.run([sys.executable, HERE / f"{script}.py"], check=True, cwd=HERE)
