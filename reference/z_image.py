"""A tiny Z-Image checkpoint of another geometry than the demo model, and what diffusers makes of it, stage by stage.

Writes fixtures/z-image-tiny: configs, tensor lists (weights come from recipe.py), golden.json and one file per case.
`run_case` is also what demo_golden.py renders the demo model's golden files with.
"""
import json
import shutil

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    ZImageImg2ImgPipeline,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from PIL import Image
from transformers import AutoTokenizer, Qwen3Config, Qwen3Model

import recipe
from common import DEMO, FIXTURES, rel_err, save, write_json

OUT = FIXTURES / "z-image-tiny"

# head dim 128 with the released rope axes; an FFN width (682) that no tile divides; 6 query heads on 2 key heads.
TRANSFORMER = dict(
    all_patch_size=(2,), all_f_patch_size=(1,), in_channels=16, dim=256, n_layers=2, n_refiner_layers=2, n_heads=2,
    n_kv_heads=2, norm_eps=1e-5, qk_norm=True, cap_feat_dim=96, rope_theta=256.0, t_scale=1000.0,
    axes_dims=[32, 48, 48], axes_lens=[1024, 512, 512],
)
TEXT_ENCODER = dict(
    vocab_size=1536, hidden_size=96, intermediate_size=208, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=24, max_position_embeddings=2048, rope_theta=1e6, rms_norm_eps=1e-6,
    tie_word_embeddings=True, attention_bias=False, bos_token_id=None, eos_token_id=None,
    architectures=["Qwen3ForCausalLM"],
)
VAE = dict(
    in_channels=3, out_channels=3, down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4, block_out_channels=(16, 32, 32, 32), layers_per_block=2,
    latent_channels=16, norm_num_groups=4, sample_size=128, scaling_factor=0.3611, shift_factor=0.1159,
    use_quant_conv=False, use_post_quant_conv=False, mid_block_add_attention=True, force_upcast=False,
)

LONG = "a very long sentence about a green turtle, two striped umbrellas, a locomotive and the moon above a quiet harbour"
CASES = [
    dict(file="t2i", prompt="a red apple", seed=1, width=96, height=64, steps=4),
    # 5 x 7 = 35 image tokens and more than 32 caption tokens: both sequences are padded
    dict(file="t2i_odd", prompt=LONG, seed=2**53 + 1, width=112, height=80, steps=3),
    dict(file="cfg", prompt="a red apple", negative_prompt="blurry, blue", seed=7, width=96, height=64, steps=4,
         guidance_scale=4.0),
    # the two captions have different padded lengths; 32 image tokens exactly
    dict(file="cfg_long", prompt=LONG, negative_prompt="", seed=0, width=128, height=64, steps=3, guidance_scale=4.0),
    dict(file="cfg_norm_1", prompt="a red apple", negative_prompt="blurry, blue", seed=7, width=96, height=64, steps=5,
         guidance_scale=4.0, cfg_normalization=1.0, cfg_truncation=0.5),
    dict(file="cfg_norm_half", prompt="a red apple", negative_prompt="blurry, blue", seed=7, width=96, height=64,
         steps=3, guidance_scale=4.0, cfg_normalization=0.5),
    dict(file="img2img", prompt="a red apple", seed=5, width=96, height=64, steps=5, strength=0.6, image="input.png"),
    dict(file="img2img_cfg", prompt="rocket", negative_prompt="blurry", seed=2**63, width=96, height=64, steps=4,
         guidance_scale=3.0, strength=0.35, image="input.png"),
]
DEFAULTS = dict(negative_prompt=None, guidance_scale=0.0, cfg_normalization=0.0, cfg_truncation=1.0, strength=None,
                image=None)


def build() -> ZImagePipeline:
    """The tiny pipeline with the recipe's weights, float32."""
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0, use_dynamic_shifting=False),
        vae=recipe.fill(AutoencoderKL(**VAE)),
        text_encoder=recipe.fill(Qwen3Model(Qwen3Config(**TEXT_ENCODER)), "model."),
        tokenizer=AutoTokenizer.from_pretrained(DEMO / "tokenizer"),
        transformer=recipe.fill(ZImageTransformer2DModel(**TRANSFORMER)),
    )


def chat_text(pipe, prompt: str) -> str:
    return pipe.tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                              add_generation_prompt=True, enable_thinking=True)


def embed(pipe, prompt: str, out: dict, prefix: str = "") -> None:
    out[f"{prefix}input_ids"] = torch.tensor(pipe.tokenizer(chat_text(pipe, prompt))["input_ids"])
    embeds = pipe.encode_prompt([prompt], device="cpu", do_classifier_free_guidance=False)[0][0]
    assert len(embeds) == len(out[f"{prefix}input_ids"]) <= 512
    out[f"{prefix}prompt_embeds"] = embeds.float()


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def run_case(pipe, case: dict, folder) -> tuple[dict, Image.Image]:
    """Every stage's tensors of one render, and its picture."""
    c = DEFAULTS | case
    out = {}
    with torch.no_grad():
        embed(pipe, c["prompt"], out)
        if c["guidance_scale"] > 0:
            embed(pipe, c["negative_prompt"] or "", out, "negative_")
    args = dict(prompt=c["prompt"], num_inference_steps=c["steps"], guidance_scale=c["guidance_scale"],
                negative_prompt=c["negative_prompt"], cfg_normalization=c["cfg_normalization"],
                cfg_truncation=c["cfg_truncation"])
    shape = (1, 16, c["height"] // 8, c["width"] // 8)
    if c["strength"] is None:
        out["latents_init"] = torch.randn(shape, generator=generator(c["seed"]))
        args |= dict(height=c["height"], width=c["width"])
    else:
        pipe = ZImageImg2ImgPipeline(**pipe.components)
        picture = Image.open(folder / c["image"]).convert("RGB")
        assert picture.size == (c["width"], c["height"])
        args |= dict(image=picture, strength=c["strength"])
        pixels = pipe.image_processor.preprocess(picture).to(torch.float32)
        # the generator's two draws, in this order: the posterior's sample, then the noise
        dtype, draw = pipe.vae.dtype, generator(c["seed"])
        with torch.no_grad():
            dist = pipe.vae.encode(pixels.to(dtype)).latent_dist
        out["encoder_mean"], out["encoder_logvar"] = dist.mean, dist.logvar
        out["encoder_noise"] = torch.randn(shape, generator=draw, dtype=dtype)
        out["noise"] = torch.randn(shape, generator=draw, dtype=dtype)
        sample = dist.mean + dist.std * out["encoder_noise"]
        out["image_latents"] = (sample - pipe.vae.config.shift_factor) * pipe.vae.config.scaling_factor

    steps, inputs = [], []

    def after_step(_, index, __, tensors):
        steps.append(tensors["latents"].clone())
        return tensors

    hook = pipe.transformer.register_forward_pre_hook(lambda _, a: inputs.append(a[0][0].clone()))
    pipe.set_progress_bar_config(disable=True)
    picture = pipe(**args, generator=generator(c["seed"]), callback_on_step_end=after_step).images[0]
    hook.remove()

    out["sigmas"], out["timesteps"] = pipe.scheduler.sigmas.clone(), pipe.scheduler.timesteps.clone()
    if c["strength"] is not None:
        first = c["steps"] - len(steps)
        sigma = out["sigmas"][first].to(out["noise"].dtype)
        out["latents_init"] = sigma * out["noise"] + (1.0 - sigma) * out["image_latents"]
    assert torch.equal(inputs[0].squeeze(1)[None].float(), out["latents_init"].to(pipe.transformer.dtype).float())
    for i, latents in enumerate(steps):
        out[f"latents_step_{i + 1:02d}"] = latents
    with torch.no_grad():
        z = steps[-1].to(pipe.vae.dtype) / pipe.vae.config.scaling_factor + pipe.vae.config.shift_factor
        out["image"] = pipe.vae.decode(z, return_dict=False)[0]
    check = pipe.image_processor.postprocess(out["image"], output_type="pil")[0]
    assert np.array_equal(np.asarray(check), np.asarray(picture))
    return {k: v if v.dtype == torch.int64 else v.float() for k, v in out.items()}, picture


def write_cases(pipe, cases: list, folder, pictures=(), drop=None) -> None:
    """One safetensors file a case (without the tensor in `drop`), golden.json, PNGs of the cases in `pictures`."""
    meta = []
    for case in cases:
        tensors, picture = run_case(pipe, case, folder)
        tensors.pop((drop or {}).get(case["file"]), None)
        save(folder / f"{case['file']}.safetensors", tensors)
        if case["file"] in pictures:
            picture.save(folder / f"{case['file']}.png")
        meta.append({"chat_text": chat_text(pipe, case["prompt"])} | DEFAULTS | case)
    write_json(folder / "golden.json", meta)


def input_picture(width: int, height: int) -> Image.Image:
    """Gradients, a disc and a bar: something with edges for image to image."""
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([255 * x / width, 255 * y / height, 128 + 100 * np.sin(x / 9.0)], -1)
    rgb[(x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2] = (230, 40, 30)
    rgb[:, width * 3 // 4 : width * 3 // 4 + 6] = (20, 200, 90)
    return Image.fromarray(rgb.astype(np.uint8))


def stages(pipe) -> None:
    """Single modules: every hidden state of the text encoder, the denoiser's inside, both halves of the VAE."""
    out = {}
    hooks = []

    def keep(name, module, pick=lambda o: o):
        def hook(_, __, output):
            out.setdefault(name, pick(output).clone())

        hooks.append(module.register_forward_hook(hook))

    dit, vae, te = pipe.transformer, pipe.vae, pipe.text_encoder
    ids = torch.tensor([pipe.tokenizer(chat_text(pipe, LONG))["input_ids"]])
    with torch.no_grad():
        hidden = te(input_ids=ids, output_hidden_states=True).hidden_states
        text = {"input_ids": ids[0]} | {f"hidden_states_{i}": h[0] for i, h in enumerate(hidden)}
        padded = pipe.encode_prompt([LONG], device="cpu", do_classifier_free_guidance=False)[0][0]
        assert rel_err(hidden[-2][0], padded) < 1e-5  # padding to 512 changes nothing
        save(OUT / "text_encoder.safetensors", text)

        for name, module in [("t_embed", dit.t_embedder), ("x_embed", dit.all_x_embedder["2-1"]),
                             ("noise_refiner_0", dit.noise_refiner[0]), ("context_refiner_0", dit.context_refiner[0]),
                             ("layer_0_attention", dit.layers[0].attention), ("layer_0", dit.layers[0])]:
            keep(name, module)
        hooks.append(dit.layers[0].register_forward_pre_hook(lambda _, args: out.update(rope=args[2][0].clone())))
        latents = torch.randn(1, 16, 6, 10, generator=generator(11))
        t = torch.tensor([0.28125])
        out["output"] = dit([latents[0].unsqueeze(1)], t, [padded], return_dict=False)[0][0].squeeze(1)[None]
        freqs = out.pop("rope")
        out |= {"latents": latents, "t": t, "cap_feats": padded, "rope_cos": freqs.real, "rope_sin": freqs.imag}
        save(OUT / "denoiser.safetensors", out)
        print("denoiser rms:", {k: round(v.pow(2).mean().sqrt().item(), 3) for k, v in out.items()})

        out.clear()
        for half in ("encoder", "decoder"):
            module = getattr(vae, half)
            keep(f"{half}_conv_in", module.conv_in)
            keep(f"{half}_mid", module.mid_block)
            keep(f"{half}_mid_attention", module.mid_block.attentions[0])
        pixels = pipe.image_processor.preprocess(input_picture(48, 32)).to(torch.float32)
        latents = torch.randn(1, 16, 4, 6, generator=generator(12))
        out["moments"] = vae.encode(pixels).latent_dist.parameters
        out["image"] = vae.decode(latents, return_dict=False)[0]
        save(OUT / "vae.safetensors", out | {"pixels": pixels, "latents": latents})
        print("vae rms:", {k: round(v.pow(2).mean().sqrt().item(), 3) for k, v in out.items()})
    for h in hooks:
        h.remove()


def half_precision(pipe) -> None:
    """t2i and cfg with the weights rounded to bf16: computed in bf16 as a pipeline user would, and in float32."""
    out, report = {}, {}
    cases = [c for c in CASES if c["file"] in ("t2i", "cfg")]

    def run():
        return {c["file"]: run_case(pipe, c, OUT)[0] for c in cases}

    exact = run()
    pipe.to(torch.bfloat16)
    low = run()
    pipe.to(torch.float32)  # the weights stay what bf16 kept of them
    for name, r in run().items():
        last = max(k for k in r if k.startswith("latents_step"))
        for key, short in (("prompt_embeds", "prompt_embeds"), (last, "latents"), ("image", "image")):
            report[f"{name}.{short}"] = {"bf16 vs f32, same bf16 weights": rel_err(low[name][key], r[key]),
                                         "bf16 vs f32 weights and compute": rel_err(low[name][key], exact[name][key])}
            if name == "t2i" or short == "latents":
                out[f"{name}.bf16.{short}"], out[f"{name}.f32.{short}"] = low[name][key], r[key]
    save(OUT / "bf16.safetensors", out)
    print(json.dumps(report, indent=1))


def main() -> None:
    pipe = build()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "scheduler").mkdir(exist_ok=True)
    pipe.scheduler.save_pretrained(OUT / "scheduler")
    for part, prefix in (("transformer", ""), ("vae", ""), ("text_encoder", "model.")):
        module = getattr(pipe, part)
        if part == "text_encoder":
            module.config.save_pretrained(OUT / part)
        else:
            module.save_config(OUT / part)
        recipe.save_tensor_list(OUT / part / "tensors.json", recipe.tensor_list(module, prefix))
    shutil.copy(DEMO / "model_index.json", OUT / "model_index.json")
    input_picture(96, 64).save(OUT / "input.png")
    stages(pipe)
    write_cases(pipe, CASES, OUT, pictures=("t2i", "img2img"))
    half_precision(pipe)


if __name__ == "__main__":
    main()
