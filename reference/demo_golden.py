"""The demo model's golden renders (fixtures/demo-golden), made from assets/demo with diffusers in float32.

Run it again whenever the weights in assets/demo change: nothing else depends on them.
"""
import torch
from diffusers import ZImagePipeline

from common import DEMO, FIXTURES, rel_err, save
from z_image import run_case, write_cases

OUT = FIXTURES / "demo-golden"
SIZE = dict(width=128, height=128, steps=9)
CASES = [
    dict(file="golden_0", prompt="a red apple", seed=1) | SIZE,
    dict(file="golden_1", prompt="grinning face", seed=2) | SIZE,
    dict(file="golden_2", prompt="a picture of a rocket", seed=3) | SIZE,
    dict(file="golden_cfg", prompt="a red apple", negative_prompt="green frog", seed=4, guidance_scale=3.0) | SIZE,
    dict(file="golden_img2img", prompt="a tangerine", seed=5, strength=0.6, image="golden_0.png") | SIZE,
]


def main() -> None:
    pipe = ZImagePipeline.from_pretrained(DEMO, torch_dtype=torch.float32)
    # the float image of the last two is in their PNG; a decoder is compared in the others
    write_cases(pipe, CASES, OUT, pictures=[c["file"] for c in CASES], drop={"golden_cfg": "image", "golden_img2img": "image"})

    exact, low = {}, {}
    for case in (CASES[0], CASES[3]):
        exact[case["file"]] = run_case(pipe, case, OUT)[0]
    pipe = ZImagePipeline.from_pretrained(DEMO, torch_dtype=torch.bfloat16)
    for name, e in exact.items():
        got, _ = run_case(pipe, next(c for c in CASES if c["file"] == name), OUT)
        for key in ("prompt_embeds", "latents_step_09", "image"):
            print(name, key, "bf16 vs f32:", rel_err(got[key], e[key]))
            if key != "image":
                low[f"{name}.{key}"] = got[key]
    save(OUT / "bf16.safetensors", low)


if __name__ == "__main__":
    main()
