"""Stage 3: write the bf16 diffusers folder, then render samples.png with diffusers ZImagePipeline (float32, CPU).

The golden fixtures are made from that folder by ../demo_golden.py."""
import argparse, json, os, shutil
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from PIL import Image, ImageDraw
from safetensors.torch import save_file
from transformers import Qwen3Model

ap = argparse.ArgumentParser()
ap.add_argument("--work", default="demo-work"); ap.add_argument("--ckpt", default="ckpt")
HERE = os.path.dirname(os.path.abspath(__file__))
ap.add_argument("--out", default=os.path.normpath(f"{HERE}/../../assets/demo"))
ap.add_argument("--px", type=int, default=128); ap.add_argument("--steps", type=int, default=9)
ap.add_argument("--prompts", default=""); ap.add_argument("--do", default="export,samples")
ap.add_argument("--cfg", type=float, default=0.0); ap.add_argument("--grid", default="samples.png"); ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--threads", type=int, default=2)
a = ap.parse_args(); torch.set_num_threads(a.threads); W, O = a.work, a.out
do = a.do.split(",")

if "export" in do:
    dit = ZImageTransformer2DModel.from_pretrained(f"{W}/{a.ckpt}/transformer").to(torch.bfloat16)
    te = Qwen3Model.from_pretrained(f"{W}/{a.ckpt}/text_encoder").to(torch.bfloat16)
    vae = AutoencoderKL.from_pretrained(f"{W}/vae").to(torch.bfloat16)
    dit.save_pretrained(f"{O}/transformer"); vae.save_pretrained(f"{O}/vae"); te.save_pretrained(f"{O}/text_encoder")
    # tensor names as in Z-Image's own text_encoder ("model." prefix of Qwen3ForCausalLM); Qwen3Model loads either
    save_file({"model." + k: v.contiguous() for k, v in te.state_dict().items()}, f"{O}/text_encoder/model.safetensors", {"format": "pt"})
    c = json.load(open(f"{O}/text_encoder/config.json")); c["architectures"] = ["Qwen3ForCausalLM"]; c["torch_dtype"] = "bfloat16"
    c.setdefault("rope_theta", 1e6)
    json.dump(c, open(f"{O}/text_encoder/config.json", "w"), indent=2)
    FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0, use_dynamic_shifting=False).save_pretrained(f"{O}/scheduler")
    os.makedirs(f"{O}/tokenizer", exist_ok=True)
    for f in ("tokenizer.json", "tokenizer_config.json"): shutil.copy(f"{W}/tokenizer/{f}", f"{O}/tokenizer/{f}")
    import diffusers
    json.dump({"_class_name": "ZImagePipeline", "_diffusers_version": diffusers.__version__,
               "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "text_encoder": ["transformers", "Qwen3Model"],
               "tokenizer": ["transformers", "Qwen2Tokenizer"], "transformer": ["diffusers", "ZImageTransformer2DModel"],
               "vae": ["diffusers", "AutoencoderKL"]}, open(f"{O}/model_index.json", "w"), indent=2)

    for part in ("transformer", "vae"):  # no local paths in the configs
        f = f"{O}/{part}/config.json"; c = json.load(open(f)); c.pop("_name_or_path", None); json.dump(c, open(f, "w"), indent=2)

pipe = ZImagePipeline.from_pretrained(O, torch_dtype=torch.float32); pipe.set_progress_bar_config(disable=True)


def render(p, seed, **k):
    return pipe(p, height=a.px, width=a.px, num_inference_steps=a.steps, guidance_scale=a.cfg,
                generator=torch.Generator("cpu").manual_seed(seed), **k)


if "samples" in do:
    P = [l.strip() for l in open(a.prompts or f"{HERE}/prompts.txt") if l.strip()]
    n = 5; cell = a.px + 18
    g = Image.new("RGB", (n * (a.px + 8), -(-len(P) // n) * cell), "white"); d = ImageDraw.Draw(g)
    for i, p in enumerate(P):
        x, y = (i % n) * (a.px + 8) + 4, (i // n) * cell
        g.paste(render(p, a.seed).images[0], (x, y)); d.text((x + 2, y + a.px + 2), p, fill="black")
    g.save(f"{HERE}/{a.grid}")
