"""A method of another package: temperature scaling, mixed with the uniform law."""

from skfedcal.methods.registry import Algorithm, Method, register_method

scoring = Algorithm(
    name="uniform_mixture.scoring/1",
    path="uniform_mixture.rounds:MixtureScoring",
    cases=({}, {"clip": 1.0}),
)
METHOD = Method(
    word="uniform_mixture",
    estimator="uniform_mixture.estimator:FedMixtureCalibrator",
    algorithms=(scoring,),
    map="uniform_mixture.estimator:mixture",
)
register_method(METHOD)
