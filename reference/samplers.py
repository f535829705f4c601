"""Sigma schedules and sampler steps of diffusers' own schedulers on flow-matching sigmas, with a toy network."""
import json
import math

import numpy as np
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    DPMSolverSDEScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    FlowMatchLCMScheduler,
    LTXEulerAncestralRFScheduler,
    UniPCMultistepScheduler,
)

from common import FIXTURES

SHAPE = (1, 1, 4, 4)
SEED = 7


def toy_velocity(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """A smooth, nonlinear stand-in for a network: `noise - picture` with a picture that depends on x and sigma."""
    place = torch.linspace(-1.0, 1.0, x.numel()).reshape(x.shape)
    picture = torch.tanh(x * (0.3 + 0.5 * (1.0 - sigma)) + place)
    return x - 0.8 * picture


# --- schedules

def flow(shift: float, **options) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift, **options)


def schedule(name: str, shift: float, steps: int, mu: float | None = None) -> list[float]:
    """Through the scheduler's public options; what it is handed is what sets the names apart."""
    options = {"karras": "use_karras_sigmas", "exponential": "use_exponential_sigmas", "beta": "use_beta_sigmas"}
    dynamic = {} if mu is None else {"use_dynamic_shifting": True}
    scheduler = flow(shift, **dynamic, **({options[name]: True} if name in options else {}))
    smallest = scheduler.sigma_min  # of the model: the static shift is in it
    if name == "simple":
        given = np.linspace(1.0, 1.0 / steps, steps)
    elif name == "normal":
        given = None  # the scheduler's own default
    elif name == "sgm_uniform":
        given = np.linspace(1.0, smallest, steps + 1)[:-1]
    else:  # spaced anew between the model's largest and smallest sigma, whatever is handed in between
        given = np.linspace(1.0, 0.001, steps) if steps > 1 else np.array([1.0])
    scheduler.set_timesteps(steps, sigmas=None if given is None else given.tolist(), mu=mu)
    return scheduler.sigmas.tolist()


# --- samplers: each yields the latents after every step

def generator() -> torch.Generator:
    """After the one draw that the initial noise takes."""
    out = torch.Generator("cpu").manual_seed(SEED)
    torch.randn(SHAPE, generator=out)
    return out


def start() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator("cpu").manual_seed(SEED))


def with_sigmas(scheduler, sigmas: list[float]):
    """Any schedule, for schedulers that only make their own."""
    steps = len(sigmas) - 1
    scheduler.set_timesteps(steps)
    scheduler.sigmas = torch.tensor(sigmas, dtype=torch.float32)
    scheduler.timesteps = scheduler.sigmas[:-1] * 1000
    scheduler.num_inference_steps = steps
    scheduler.set_begin_index(0)
    return scheduler


def one_call_a_step(scheduler, sigmas, **arguments):
    x = start()
    for i, t in enumerate(scheduler.timesteps[: len(sigmas) - 1]):
        x = scheduler.step(toy_velocity(x, sigmas[i]), t, x, **arguments, return_dict=False)[0]
        yield x


def multistep(sigmas, **options):
    return with_sigmas(DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, **options), sigmas)


def heun(sigmas):
    scheduler = FlowMatchHeunDiscreteScheduler()
    scheduler.set_timesteps(len(sigmas) - 1)
    s = torch.tensor(sigmas, dtype=torch.float32)
    scheduler.sigmas = torch.cat([s[:1], s[1:-1].repeat_interleave(2), s[-1:]])
    scheduler.set_begin_index(0)
    x = start()
    for i in range(len(sigmas) - 1):
        for sigma in [sigmas[i], sigmas[i + 1]] if sigmas[i + 1] > 0 else [sigmas[i]]:
            x = scheduler.step(toy_velocity(x, sigma), torch.tensor(0.0), x, return_dict=False)[0]
        yield x


def unipc(sigmas):
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    scheduler.set_timesteps(sigmas=np.array(sigmas[:-1], dtype=np.float64))
    scheduler.set_begin_index(0)
    return one_call_a_step(scheduler, sigmas)


def ancestral(sigmas):
    scheduler = LTXEulerAncestralRFScheduler()
    scheduler.set_timesteps(sigmas=sigmas)
    scheduler.set_begin_index(0)
    return one_call_a_step(scheduler, sigmas, generator=generator())


def dpmpp_sde(sigmas):
    """DPMSolverSDEScheduler works on x / alpha with noise level sigma / alpha; its Brownian path is drawn from the seed."""
    noise = generator()
    x = start()
    if sigmas[0] == 1.0:
        # Pure noise is infinitely far away there; the first-order step's limit leads to the next sigma.
        picture = x - toy_velocity(x, 1.0)
        x = (1 - sigmas[1]) * picture + sigmas[1] * torch.randn(SHAPE, generator=noise)
        yield x
        sigmas = sigmas[1:]
    scheduler = DPMSolverSDEScheduler()
    scheduler.set_timesteps(len(sigmas) - 1)
    s = torch.tensor([sigma / (1 - sigma) for sigma in sigmas], dtype=torch.float64)
    scheduler.sigmas = torch.cat([s[:1], s[1:-1].repeat_interleave(2), s[-1:]])
    scheduler.set_begin_index(0)
    past = {}

    def path(a, b):
        a, b = float(a), float(b)
        if past.get("from") != a:  # the first half of a step
            past.update({"from": a, "middle": b, "first": torch.randn(SHAPE, generator=noise)})
            return past["first"]
        first, second = a - past["middle"], past["middle"] - b
        both = math.sqrt(first) * past["first"] + math.sqrt(second) * torch.randn(SHAPE, generator=noise)
        return both / math.sqrt(first + second)

    scheduler.noise_sampler = path
    y = (x / (1 - sigmas[0])).double()
    for i in range(len(s) - 1):
        # The scheduler's own middle, in its logarithm of sigma.
        middle = float((s[i] * s[i + 1]).sqrt())
        for level in [float(s[i]), middle] if s[i + 1] > 0 else [float(s[i])]:
            sigma = level / (1 + level)
            x = (y / (1 + level)).float()
            epsilon = x + (1 - sigma) * toy_velocity(x, sigma)
            y = scheduler.step(epsilon.double(), torch.tensor(0.0), y, return_dict=False)[0]
        yield (y / (1 + s[i + 1])).float()


SAMPLERS = {
    "euler": lambda s: one_call_a_step(with_sigmas(flow(1.0), s), s),
    "euler_ancestral": ancestral,
    "heun": heun,
    "dpmpp_2m": lambda s: one_call_a_step(multistep(s, algorithm_type="dpmsolver++", solver_order=2), s),
    "dpmpp_2m_sde": lambda s: one_call_a_step(
        multistep(s, algorithm_type="sde-dpmsolver++", solver_order=2), s, generator=generator()),
    "dpmpp_sde": dpmpp_sde,
    "unipc": unipc,
    "lcm": lambda s: one_call_a_step(with_sigmas(FlowMatchLCMScheduler(), s), s, generator=generator()),
    # DDIM is the first-order DPM-Solver (Lu et al. 2022, section 4.1).
    "ddim": lambda s: one_call_a_step(multistep(s, algorithm_type="dpmsolver++", solver_order=1), s),
}


def main() -> None:
    schedules = []
    for name in ["simple", "normal", "karras", "exponential", "sgm_uniform", "beta"]:
        for shift, steps in [(3.0, 1), (3.0, 2), (3.0, 8), (3.0, 30), (1.0, 9)]:
            schedules.append({"name": name, "shift": shift, "steps": steps, "sigmas": schedule(name, shift, steps)})
        # 64 x 32 tokens with the shifts of FLUX.1: mu as its pipeline calculates it.
        mu = 2048 * (1.15 - 0.5) / (4096 - 256) + 0.5 - 256 * (1.15 - 0.5) / (4096 - 256)
        schedules.append({"name": name, "tokens": [64, 32], "steps": 7, "sigmas": schedule(name, 1.0, 7, mu)})

    whole = schedule("simple", 3.0, 8)
    sigmas = {"from noise": whole, "from a picture": whole[3:], "karras": schedule("karras", 3.0, 16), "one step": [1.0, 0.0]}
    samplers = []
    for title, values in sigmas.items():
        for name, sampler in SAMPLERS.items():
            steps = [x.flatten().tolist() for x in sampler(values)]
            assert len(steps) == len(values) - 1 and all(math.isfinite(v) for step in steps for v in step), (title, name)
            samplers.append({"name": name, "title": title, "sigmas": values, "steps": steps})

    lines = lambda entries: "[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]"
    head = json.dumps({"seed": SEED, "shape": SHAPE})[1:-1]
    text = f'{{{head},\n"schedules": {lines(schedules)},\n"samplers": {lines(samplers)}}}\n'
    (FIXTURES / "samplers.json").write_text(text)


if __name__ == "__main__":
    main()
