"""Model-based reinforcement learning: swing up a pendulum by planning with a model of its dynamics that is learned.

The dynamics are those of gymnasium's Pendulum in steps of 0.1 s. A state that is not known exactly goes through the
network as mean and variance, step by step: the expected cost of a plan takes one pass a step and no draws. Beside it
an ensemble of five networks, whose particles are drawn, as in PETS (Chua et al. 2018). Plans are found by the
cross-entropy method.
"""

import sys
import time

import numpy as np
import torch

import bedl

QUICK = "--quick" in sys.argv
DT, STEPS, EPISODES, SEEDS = 0.1, 20 if QUICK else 100, 2 if QUICK else 6, 1 if QUICK else 2
HORIZON, PLANS, ELITE, PARTICLES = 5 if QUICK else 14, 100, 10, 4  # particles of each network
COMMON = {"hidden_layers": (64, 64), "epochs": 10 if QUICK else 120, "early_stopping": False, "random_state": 0}
SETTINGS = {"bedl": {**COMMON, "method_options": {"head": {"noise": "learned"}}}, "ensemble": COMMON}


def wrapped(angle):
    return (angle + np.pi) % (2 * np.pi) - np.pi


def next_speed(method, model, x):
    """Moments of the speed; drawn for an ensemble, of which each network has its own particles."""
    (loc,), (scale,) = model.target_loc_.tolist(), model.target_scale_.tolist()
    if method == "bedl":
        p = model.method_.predict(x)
        return bedl.Moments(loc + scale * p.mean[:, 0], scale**2 * p.variance[:, 0])
    said = [member.predict(part) for member, part in zip(model.method_.members, x.loc.chunk(5), strict=True)]
    drawn = torch.cat([p.mean + p.data.sqrt() * torch.randn_like(p.mean) for p in said])[:, 0]
    return bedl.Moments(loc + scale * drawn, torch.zeros_like(drawn))


@torch.no_grad()
def costs(method, model, state, torques):
    """The expected cost of plans. torques: shape (plans, horizon) -> (plans,)"""
    copies = 1 if method == "bedl" else 5 * PARTICLES
    angle, speed = (bedl.Moments(torch.full((copies * len(torques),), float(part)), 0.0) for part in state)
    total = torch.zeros(copies * len(torques))
    for torque in torques.repeat(copies, 1).T:
        x = torch.stack([torch.sin(angle), torch.cos(angle), speed, bedl.Moments(torque, 0.0)], -1)
        speed = next_speed(method, model, x)
        angle = bedl.Moments(angle.loc + DT * speed.loc, angle.variance + DT**2 * speed.variance)
        total += wrapped(angle.loc) ** 2 + angle.variance + 0.1 * (speed.loc**2 + speed.variance) + 0.001 * torque**2
    return total.view(copies, -1).mean(0)


def plan(method, model, state, mean, std=1.5):
    for _ in range(3):
        torques = (mean + std * torch.randn(PLANS, HORIZON)).clamp(-2, 2)
        with bedl.nn.cached_weights(model.method_):
            best = torques[costs(method, model, state, torques).topk(ELITE, largest=False).indices]
        mean, std = best.mean(0), best.std(0)
    return mean


for method in SETTINGS:
    returns, spent = np.zeros((SEEDS, EPISODES)), []
    for seed in range(SEEDS):
        rng, rows, model = np.random.default_rng(seed), [], None
        torch.manual_seed(seed)
        for episode in range(EPISODES):
            angle, speed = rng.uniform(-np.pi, np.pi), rng.uniform(-1, 1)
            torques = torch.zeros(HORIZON) if model else torch.as_tensor(rng.uniform(-2, 2, STEPS))
            for _ in range(STEPS):
                start = time.perf_counter()
                if model is not None:
                    torques = plan(method, model, (angle, speed), torques)
                    spent.append(time.perf_counter() - start)
                torque, torques = float(torques[0]), torch.cat([torques[1:], torch.zeros(1)])
                returns[seed, episode] -= wrapped(angle) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
                after = np.clip(speed + DT * (15 * np.sin(angle) + 3 * torque), -8, 8)  # the pendulum itself
                rows.append(((np.sin(angle), np.cos(angle), speed, torque), after))
                angle, speed = angle + DT * after, after
            model = bedl.BEDLRegressor(method=method, **SETTINGS[method]).fit(*map(np.float32, zip(*rows, strict=True)))
    print(f"{method}: return by episode {returns.mean(0).round().astype(int).tolist()}")
    print(f"{method}: last return {returns[:, -1].mean():.0f}, a plan takes {1000 * np.mean(spent):.0f} ms")
