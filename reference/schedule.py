"""Flow-match Euler schedules as the Z-Image pipelines set them, and where image to image enters them."""
from diffusers import FlowMatchEulerDiscreteScheduler, ZImageImg2ImgPipeline
from diffusers.pipelines.z_image.pipeline_z_image import get_default_z_image_sigmas

from common import FIXTURES, write_json

STEPS = [1, 2, 4, 5, 8, 9, 20, 28, 50]
STRENGTHS = [i / 20 for i in range(1, 21)]


def main() -> None:
    out = []
    for shift in (3.0, 1.0):
        for steps in STEPS if shift == 3.0 else [4, 9]:
            scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift)
            linspace = get_default_z_image_sigmas(steps)
            scheduler.set_timesteps(steps, sigmas=linspace, mu=1.0)
            entry = {"shift": shift, "steps": steps, "linspace": linspace, "sigmas": scheduler.sigmas.tolist(),
                     "timesteps": scheduler.timesteps.tolist()}
            if shift == 3.0:
                pipe = type("Pipe", (), {"scheduler": scheduler})()
                entry["first_step_by_strength"] = [
                    [s, steps - ZImageImg2ImgPipeline.get_timesteps(pipe, steps, s, "cpu")[1]] for s in STRENGTHS]
            out.append(entry)
    write_json(FIXTURES / "schedule.json", out)


if __name__ == "__main__":
    main()
