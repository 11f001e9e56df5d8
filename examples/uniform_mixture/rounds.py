"""What clients send and what the server makes of the sum; a site needs numpy only."""

from dataclasses import dataclass

import numpy as np

from skfedcal.contract import BlockSpec, Field

BOUND, START = 6.0, (0.0, -3.0)  # of log(1 / T) and of the log-odds of w


@dataclass(frozen=True, slots=True)
class MixtureState:
    """``log(1 / T)`` and log-odds of w, last step, and first slope over its noise."""

    point: tuple[float, float] = START
    step: float = np.inf
    evidence: float | None = None


@dataclass(frozen=True, slots=True)
class MixtureScoring:
    """Fisher scoring on the summed log loss: slopes and Fisher information."""

    clip: float | None = None
    n_rounds: int = 40

    def init(self, n_classes):
        return MixtureState()

    def broadcast(self, state):
        return {"point": np.array(state.point)}

    def spec(self, broadcast):
        return {"slopes": BlockSpec((5,), clip=self.clip)}

    def forms(self, n_classes):
        return ({"point": Field((2,), "real", -BOUND, BOUND)},)

    def query(self, broadcast, clients):
        beta, odds = np.exp(broadcast["point"])
        w, c = odds / (1 + odds), clients.n_classes
        out = np.zeros((len(clients), 5))
        for block in clients.blocks():
            z = np.array(block.rows, dtype=np.float64, order="C") / 2  # no overflow
            z = 2 * beta * np.maximum(z - z.max(axis=1, keepdims=True), -1e6)
            p = np.exp(z)
            p /= np.einsum("ij->i", p)[:, None]
            q = (1 - w) * p + w / c
            u = (1 - w) * p * (z - np.einsum("ij,ij->i", p, z)[:, None])
            v = (1 - w) * w * (1 / c - p)
            pairs = ((u, u), (u, v), (v, v))
            fisher = [np.einsum("ij,ij->i", d, e / q) for d, e in pairs]
            at = np.arange(len(z)), block.labels
            values = np.array([-(u / q)[at], -(v / q)[at], *fisher])
            out[block.clients] += block.sum_by_client(values)
        scale = 1 if self.clip is None else np.maximum(clients.sizes, 25)[:, None]
        return {"slopes": out / scale}

    def update(self, state, total, n_clients):
        a, b, aa, ab, bb = total["slopes"]
        noise = total.noise.get("slopes", 0.0)
        slope = [a, b] + np.subtract(state.point, START)
        matrix = [[aa, ab], [ab, bb]] + (1.0 + 2 * noise) * np.eye(2)  # and a prior
        step = np.clip(np.linalg.solve(matrix, slope) / 2, -1, 1)
        point = tuple(np.clip(state.point - step, -BOUND, BOUND).tolist())
        evidence = state.evidence or (max(abs(a), abs(b)) / noise if noise else np.inf)
        return MixtureState(point, float(np.abs(step).max()), evidence)

    def done(self, state):
        return state.step < 1e-8
