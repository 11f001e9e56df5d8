"""Broken mechanisms that an audit must catch.

Run ``python tests/privacy/sabotage.py`` for a table. A sabotage is a small change to an
honest estimator; without the change the same audit passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from skfedcal import FedBinCalibrator, FedTempCalibrator, FedTopBinCalibrator
from skfedcal.contract import Sums
from skfedcal.privacy import AuditResult, CentralDP, LocalDP, audit_estimator
from skfedcal.privacy.codec import BlockCode, Codec, clip_rows
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import LatticeGaussian


class UnclippedCode(BlockCode):
    """Writes what it is given, however long."""

    def _encode(self, values):
        flat = values.reshape(len(values), 1, self.spec.size)
        return np.rint(flat / self.step).astype(np.int64)


class NoClipping(LatticeGaussian):
    def codec(self, spec, round_index=0):
        codec = super().codec(spec, round_index)
        codes = {n: UnclippedCode(c.spec, c.step) for n, c in codec.blocks.items()}
        return Codec(codes)


class ServerClipping(NoClipping):
    """Clips the sum over clients instead of each client."""

    def release(self, total, codec, round_index, n_clients=None):
        clipped = {}
        for name, code in codec.blocks.items():
            value = clip_rows(total[name] * code.step, code.spec.clip)
            clipped[name] = np.rint(value / code.step).astype(np.int64)
        return super().release(clipped, codec, round_index, n_clients)


class HalfTheNoise(LatticeGaussian):
    def _draw(self, size, source, n_clients):
        return super()._draw(size, source, n_clients) // 2


class NoiseOfTheMean(LatticeGaussian):
    """Noise for the mean over clients, put on the sum."""

    def _draw(self, size, source, n_clients):
        return super()._draw(size, source, n_clients) // n_clients


class ChargedAsJoint(LatticeGaussian):
    """Noise for a client that is clipped as a whole, not class by class."""

    def _sigmas(self, spec, round_index):
        joint = {name: replace(block, groups=1) for name, block in spec.items()}
        return super()._sigmas(joint, round_index)

    def _check_bounds(self, codec, round_index):
        """Would notice."""


class NoiseUsedTwice(LatticeGaussian):
    def _draw(self, size, source, n_clients):
        kept = vars(self).setdefault("_kept", {})
        if size not in kept:
            kept[size] = super()._draw(size, source, n_clients)
        return kept[size]


class UniformNoise(LatticeGaussian):
    """As large as stated, but it ends somewhere: beyond, a client is seen for sure."""

    def _draw(self, size, source, n_clients):
        width = 2 * round(self._lattice_sigma * 3**0.5) + 1
        rng = np.random.default_rng(source.uint64(4))
        return rng.integers(width, size=size) - width // 2


class OneNumberBare(LatticeGaussian):
    def _draw(self, size, source, n_clients):
        drawn = super()._draw(size, source, n_clients)
        return np.where(np.arange(size) == size - 1, 0, drawn)


class SharedNoise(LatticeGaussian):
    """Every other number has the noise of the one before: differences are exact."""

    def _draw(self, size, source, n_clients):
        return np.repeat(super()._draw(-(-size // 2), source, n_clients), 2)[:size]


class FewSeeds(LatticeGaussian):
    def _draw(self, size, source, n_clients):
        seed = int(source.uint64(1)[0] >> np.uint64(56))
        return super()._draw(size, SeededEntropy(seed), n_clients)


class FloatNoise(LatticeGaussian):
    def release(self, total, codec, round_index, n_clients=None):
        out = super().release(total, codec, round_index, n_clients)
        words = self._entropy.child(round_index, 99).uint64(1)
        rng = np.random.default_rng(int(words[0]))
        values = {
            name: code.decode(total[name])
            + rng.normal(0, out.noise[name], size=code.spec.shape)
            for name, code in codec.blocks.items()
        }
        return Sums(values, out.noise, out.laws)


class SeededButSecure(SeededEntropy):
    """Says that nobody can foretell it."""

    secure = True

    def child(self, *key):
        return SeededButSecure(*self._path, *key)


@dataclass(frozen=True)
class SabotagedDP(CentralDP):
    """Central model with another mechanism; None is the honest one."""

    flaw: Any = None

    def mechanism(self, plan, **options):
        if self.flaw is SeededButSecure:
            options["entropy"] = SeededButSecure(0)
        mechanism = super().mechanism(plan, **options)
        if isinstance(self.flaw, type) and issubclass(self.flaw, LatticeGaussian):
            mechanism.__class__ = self.flaw
        return mechanism


def saying(mechanism: Any, eps: float) -> Any:
    report = mechanism.report
    mechanism.report = lambda: replace(report(), eps=eps)
    return mechanism


@dataclass(frozen=True)
class SpendsMore(CentralDP):
    """Pays for more than it was asked for, and reports it truly, or as asked."""

    true: float = 1.0
    admits: bool = True

    def mechanism(self, plan, **options):
        mechanism = CentralDP(self.true, delta=self.delta).mechanism(plan, **options)
        return mechanism if self.admits else saying(mechanism, self.eps)


@dataclass(frozen=True)
class LyingLocalDP(LocalDP):
    """Reports with another eps than is claimed."""

    true: float = 1.0

    def mechanism(self, plan, **options):
        model = LocalDP(self.true, self.oracle, self.mode)
        return saying(model.mechanism(plan, **options), self.eps)


class MeddlingCalibrator(FedTempCalibrator):
    """What a client sends depends on the others."""

    meddles = True

    def _make_algorithm(self, *args, **options):
        algorithm = super()._make_algorithm(*args, **options)
        if not self.meddles:
            return algorithm
        kind = type(algorithm)

        def query(own, state, clients):
            rows = kind.query(own, state, clients)
            return {name: row + row.mean(axis=0) for name, row in rows.items()}

        meddling = type(kind.__name__, (kind,), {"query": query, "__slots__": ()})
        given = {f.name: getattr(algorithm, f.name) for f in fields(kind) if f.init}
        return meddling(**given)


class ApartCalibrator(MeddlingCalibrator):
    meddles = False


class PeekingCalibrator(FedTempCalibrator):
    """Looks at labels on its way, and remembers how many are of class 0."""

    peeks = True

    def fit(self, X, y=None, **options):
        super().fit(X, y, **options)
        if self.peeks:
            labels = np.concatenate([labels for _, labels in X])
            self.temperature_ += 1e-6 * float((labels == 0).mean())
        return self


class BlindCalibrator(PeekingCalibrator):
    peeks = False


@dataclass(frozen=True)
class Sabotage:
    """A change, an estimator to make it in, and the checks that must fail."""

    name: str
    make: Callable[[bool], Any]
    caught_by: tuple[str, ...]
    n_runs: int = 0

    def audit(self, broken: bool = True, **options: Any) -> AuditResult:
        options = {"n_runs": self.n_runs, "alpha": 1e-6, "random_state": 0, **options}
        return audit_estimator(self.make(broken), **options)


def in_mechanism(flaw: Any, cls: Any = FedTempCalibrator, **params: Any) -> Any:
    def make(broken: bool) -> Any:
        model = SabotagedDP(1.0, delta=1e-5, flaw=flaw if broken else None)
        return cls(privacy=model, **params)

    return make


def spending(admits: bool) -> Any:
    def make(broken: bool) -> Any:
        spent = {"true": 2.0 if broken else 1.0, "admits": admits}
        return FedTempCalibrator(privacy=SpendsMore(1.0, delta=1e-5, **spent))

    return make


# Fits that show half the noise beyond doubt: 120 numbers in each.
FEW = 20
# Fits that show what is seen in few of the numbers, or in one of them.
MANY = 80

SABOTAGES = [
    Sabotage("no clipping", in_mechanism(NoClipping), ("bound of a client",)),
    Sabotage(
        "clipping the server's sum",
        in_mechanism(ServerClipping),
        ("bound of a client",),
    ),
    Sabotage(
        "half the noise",
        in_mechanism(HalfTheNoise, FedBinCalibrator),
        ("noise scale",),
        FEW,
    ),
    Sabotage(
        "noise divided by the clients",
        in_mechanism(NoiseOfTheMean, FedBinCalibrator),
        ("noise scale",),
        FEW,
    ),
    Sabotage(
        "clipped per class, charged as joint",
        in_mechanism(ChargedAsJoint, FedBinCalibrator, clip_per_class=True),
        ("noise for the bound",),
    ),
    Sabotage(
        "the same noise in all rounds",
        in_mechanism(NoiseUsedTwice),
        ("fresh noise",),
        FEW,
    ),
    Sabotage(
        "seeded bytes called secure", in_mechanism(SeededButSecure), ("secret noise",)
    ),
    Sabotage("float noise", in_mechanism(FloatNoise), ("lattice",)),
    Sabotage(
        "labels read outside releases",
        lambda broken: (PeekingCalibrator if broken else BlindCalibrator)(eps=1.0),
        ("nothing else released",),
    ),
    Sabotage(
        "noise of another shape",
        in_mechanism(UniformNoise, FedBinCalibrator),
        ("noise shape",),
        MANY,
    ),
    Sabotage(
        "one number without noise",
        in_mechanism(OneNumberBare, FedBinCalibrator),
        ("noise scale",),
        FEW,
    ),
    Sabotage(
        "two numbers with the same noise",
        in_mechanism(SharedNoise, FedBinCalibrator),
        ("fresh noise",),
        FEW,
    ),
    Sabotage(
        "bytes from few seeds",
        in_mechanism(FewSeeds, FedBinCalibrator),
        ("fresh noise",),
        MANY,
    ),
    Sabotage("more eps than asked for", spending(admits=True), ("claim",)),
    Sabotage("a mu beyond its eps", spending(admits=False), ("claim",)),
    Sabotage(
        "clients that see each other",
        lambda broken: (MeddlingCalibrator if broken else ApartCalibrator)(eps=1.0),
        ("clients apart",),
    ),
    Sabotage(
        "reports of clients with another eps",
        lambda broken: FedTopBinCalibrator(
            privacy=LyingLocalDP(1.0, mode="faithful", true=5.0 if broken else 1.0)
        ),
        ("two worlds",),
        MANY,
    ),
]


def table() -> str:
    from skfedcal._table import text_table

    rows = []
    for sabotage in SABOTAGES:
        broken, honest = sabotage.audit(), sabotage.audit(broken=False)
        failed = ", ".join(check.name for check in broken.failures)
        rows.append(
            [
                sabotage.name,
                "MISSED" if broken.passed else "caught",
                "pass" if honest.passed else "FAIL",
                failed,
            ]
        )
    return text_table(["sabotage", "audit", "honest twin", "by"], rows, n_left=4)


if __name__ == "__main__":
    print(table())  # noqa: T201
