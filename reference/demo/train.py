"""Reproduces the demo model end to end: data -> VAE -> text encoder + DiT -> bf16 diffusers folder, samples.png.

    python train.py --work demo-work --src demo-data --vae-minutes 7 --dit-minutes 25

Needs npm + tar (for three small MIT data packages), torch, diffusers, transformers, tokenizers, safetensors, pillow, numpy.
Stages can be picked with --stages; each one reads the files of the stage before from --work. See assets/demo/MODEL_CARD.md for the
exact sequence of runs behind the delivered weights.
"""
import argparse, os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
ASSETS = os.path.normpath(f"{HERE}/../../assets/demo")
NPM = {"fluent": "@lobehub/fluent-emoji-3d@1.1.0", "uej": "unicode-emoji-json@0.9.0", "elib": "emojilib@4.0.3"}

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--src", default="demo-data", help="where the npm packages are unpacked")
ap.add_argument("--work", default="demo-work", help="checkpoints, latents, tokenizer")
ap.add_argument("--out", default=ASSETS, help="the diffusers folder to write")
ap.add_argument("--vae-minutes", type=float, default=7); ap.add_argument("--dit-minutes", type=float, default=25)
ap.add_argument("--stages", default="data,vae,dit,export")
a = ap.parse_args()


def run(*cmd, **k):
    print("+", *cmd, flush=True); return subprocess.run(cmd, check=True, **k)


def py(script, *args):
    run(sys.executable, os.path.join(HERE, script), *map(str, args))


stages = a.stages.split(",")
os.makedirs(a.work, exist_ok=True)
if "data" in stages:
    for d, pkg in NPM.items():
        if not os.path.isdir(f"{a.src}/{d}/package"):
            os.makedirs(f"{a.src}/{d}", exist_ok=True)
            tgz = run("npm", "pack", pkg, "--silent", cwd=a.src, capture_output=True, text=True).stdout.split()[-1]
            run("tar", "xzf", tgz, "-C", d, cwd=a.src)
if "vae" in stages:
    py("train_vae.py", "--src", a.src, "--work", a.work, "--minutes", a.vae_minutes)
if "dit" in stages:
    py("train_dit.py", "--work", a.work, "--minutes", a.dit_minutes)
if "export" in stages:
    py("export.py", "--work", a.work, "--out", a.out)
