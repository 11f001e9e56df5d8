"""The last layer from class statistics, at the end and in between."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.privacy._entropy import Stream, draw_seed
from skfedcal.training._head_rounds import HeadRounds, head_layout

# Said in the report of a private head on training that was not.
NOT_COVERED = (
    "the module that made the features is public: it was trained without privacy on "
    "these clients"
)


def with_head(trainer, algorithm, model, entropy):
    """Algorithm that replaces the last layer in between, if the trainer asks for it."""
    head = trainer.head
    if model.private and not head._privacy_model().private:
        raise ValueError(
            "Training is private, and head=FedGaussianHead() without eps would release "
            "exact sums of the same clients' features. Give it a budget of its own: "
            "FedGaussianHead(eps=..., max_norm=...)."
        )
    if model.private and head._privacy_model().unit != model.unit:
        raise ValueError(
            f"Training hides a {model.unit} and the head, "
            f"{head._privacy_model()!r}, a single {head._privacy_model().unit}: what "
            f"both cost cannot be added up. Use unit={model.unit!r} for the head."
        )
    # What the head would refuse is refused before training is paid for.
    algorithm.training.network.check_features()
    head._validate_params()
    head._make_algorithm(head._privacy_model(), 1)
    head._given_prior(len(trainer.classes_))
    if trainer.head_every == "end":
        return algorithm
    if model.private or head._privacy_model().private:
        raise ValueError(
            f"head_every={trainer.head_every!r} would release class statistics in "
            "every such round, which no budget pays for. Use head_every='end'."
        )
    if head.method != "sample":
        raise ValueError(
            f"head_every={trainer.head_every!r} trains the last layer of the module on "
            f"virtual features, which method={head.method!r} does not draw. Use "
            "FedGaussianHead(method='sample'), or head_every='end'."
        )
    head_layout(algorithm.training.network)
    head = copy_to_fit(head)
    head.classes_ = trainer.classes_
    return HeadRounds(
        algorithm, head, int(trainer.head_every), draw_seed(entropy, Stream.HEAD)
    )


def fit_head(trainer, clients, entropy):
    """Head on the features of all clients under the trained module."""
    head = copy_to_fit(trainer.head).set_params(classes=trainer.classes_)
    if head.ledger is None:
        head.set_params(ledger=trainer.ledger)
    if head.random_state is None and trainer.random_state is not None:
        head.set_params(random_state=draw_seed(entropy, Stream.HEAD) % 2**31)
    packed, model = clients.compact(), head._privacy_model()
    features = _features(trainer, packed, model)
    labels = trainer.classes_[packed.labels]
    cuts = packed.offsets[1:-1]
    head.fit(
        np.split(features, cuts),
        np.split(labels, cuts),
        client_ids=list(packed.names),
    )
    if model.private and not trainer._privacy_model().private:
        known = (*head.privacy_.assumptions, NOT_COVERED)
        head.privacy_ = replace(head.privacy_, assumptions=known)
    return head


def _features(trainer, packed, model):
    """Features of all rows; under privacy those of each unit by itself.

    Rows that go through a module together may be rounded in another way than alone,
    and in a release nothing of a unit may depend on others.
    """
    ends = packed.offsets
    if model.private and model.unit == "example":
        ends = np.arange(len(packed.rows) + 1)
    filled = [(i, j) for i, j in pairwise(ends.tolist()) if i < j]
    if not model.private or not filled:
        return trainer._features(packed.rows)
    return np.concatenate([trainer._features(packed.rows[i:j]) for i, j in filled])


def joint_report(training, head):
    """Guarantee of training and head together, where both are private.

    Eps and delta are added up, which holds for any two releases; a ledger, which knows
    their noise, finds less.
    """
    if not (training.private and head.private):
        return training
    apart = training.trust != head.trust
    bounds = {f"head {name}": bound for name, bound in head.clip.items()}
    return replace(
        training,
        eps=training.eps + head.eps,
        delta=training.delta + head.delta,
        mu=None,
        clip={**training.clip, **bounds},
        trust=f"{training.trust}; head: {head.trust}" if apart else head.trust,
        secure=training.secure and head.secure,
        seeded=training.seeded or head.seeded,
        accountant=f"{training.accountant} + {head.accountant} (head)",
        n_rounds=training.n_rounds + head.n_rounds,
        assumptions=tuple(dict.fromkeys(training.assumptions + head.assumptions)),
        ledger_ids=training.ledger_ids + head.ledger_ids,
    )
