"""Old path of federated algorithms, until 0.2.

Use `skfedcal.contract` and the rounds of each method.
A name that is taken from here gives a DeprecationWarning.
"""

from skfedcal._lazy import attach_moved

# Public name -> module that has it now.
MOVED = {
    "AccuracyRoot": "skfedcal.methods.accuracy_temperature.rounds",
    "BiasTemperatureNewton": "skfedcal.methods.bias_temperature.rounds",
    "BiasTemperaturePosterior": "skfedcal.methods.bias_temperature.rounds",
    "BiasTemperatureResidual": "skfedcal.methods.bias_temperature.rounds",
    "BlockSpec": "skfedcal.contract",
    "CellRows": "skfedcal.contract",
    "ClassHistograms": "skfedcal.methods.bins.rounds",
    "ClassMoments": "skfedcal.training.class_statistics",
    "ClassResiduals": "skfedcal.evaluation.rounds",
    "EceGrid": "skfedcal.methods.accuracy_temperature.rounds",
    "FederatedAlgorithm": "skfedcal.contract",
    "GapParts": "skfedcal.methods.accuracy_temperature.rounds",
    "LocalAverage": "skfedcal.methods.scaling.rounds",
    "MLPAveraging": "skfedcal.methods.network.rounds",
    "MatrixMap": "skfedcal.methods.scaling.families",
    "NoiseLaw": "skfedcal.contract",
    "OneVsRestCounts": "skfedcal.evaluation.rounds",
    "OrderPreservingMap": "skfedcal.methods.scaling.families",
    "PooledFit": "skfedcal.methods.scaling.rounds",
    "ScoreCounts": "skfedcal.methods.score_curves.rounds",
    "Sums": "skfedcal.contract",
    "TemperatureAverage": "skfedcal.methods.temperature.rounds",
    "TemperatureGrid": "skfedcal.methods.temperature.rounds",
    "TemperatureNewton": "skfedcal.methods.temperature.rounds",
    "TemperaturePosterior": "skfedcal.methods.temperature.posterior",
    "TemperatureSearch": "skfedcal.methods.accuracy_temperature.rounds",
    "TopBinCounts": "skfedcal.methods.top_bins.rounds",
    "VectorMap": "skfedcal.methods.scaling.families",
    "local_temperatures": "skfedcal.methods.temperature.rounds",
}

__all__ = [*MOVED]

__getattr__, __dir__ = attach_moved(__name__, MOVED)
