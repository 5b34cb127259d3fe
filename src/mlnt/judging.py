"""A model's opinion of all labels at hand, those held out included.

Axes: N training samples, then the H held out; C classes, D features.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from mlnt.data.dataset import Split
from mlnt.distributed import ALL_ALONE, World
from mlnt.evaluation import extract_features, predict_probabilities, readable
from mlnt.noise_model import Judgement, judge, says_more


@dataclass
class Judge:
    """Judges labels by models, one after another: by what each says of similar samples.

    What is similar, the describer sees for all, and a model that nobody led sees it too: few wrong
    labels are learnt by heart by both. A led one has learnt what its mentor kept, and may see that
    confirmed: it is asked too only where held-out labels show that it sees more.
    """

    train: Split
    validation: Split
    world: World = ALL_ALONE
    describer: nn.Module | None = None  # whose features say what is similar; None: each model's own
    _features_ND: Tensor | None = field(default=None, repr=False)

    def __call__(self, model: nn.Module, probabilities_NC: Tensor, is_led: bool) -> Judgement:
        """Of the training labels, then of the held-out ones; `probabilities_NC` of the former."""
        held_out = self._held_out()
        labels_N, held_out_N = self.train.labels, torch.zeros(len(self.train), dtype=torch.bool)
        if held_out is not None:
            assert held_out.given_labels is not None
            of_held_out = predict_probabilities(model, held_out.inputs, self.world)
            probabilities_NC = torch.cat([probabilities_NC, of_held_out])
            labels_N = torch.cat([labels_N, held_out.given_labels])
            held_out_N = torch.cat([held_out_N, torch.ones(len(held_out), dtype=torch.bool)])
        features, seen_N = [self.features(model)], self._seen()
        may_be_asked = not is_led or held_out is not None
        if self.describer is not None and may_be_asked and not _are_alike(model, self.describer):
            features.append(self._describe(model))
        if seen_N.all():
            return self._judge(labels_N, probabilities_NC, features, held_out_N, is_led)
        judgement = self._judge(
            labels_N[seen_N],
            probabilities_NC[seen_N],
            [features_ND[seen_N] for features_ND in features],
            held_out_N[seen_N],
            is_led,
        )
        return _in_their_places(judgement, seen_N, labels_N)

    def _judge(
        self,
        labels_N: Tensor,
        probabilities_NC: Tensor,
        features: list[Tensor],
        held_out_N: Tensor,
        is_led: bool,
    ) -> Judgement:
        """`features`: the describer's, then the model's own where that may be asked too."""
        if is_led and len(features) > 1:
            alone = features[:1]
            sees_more = says_more(labels_N, probabilities_NC, alone, features, held_out_N)
            # Several processes must come to the same end, however close it is.
            features = features if self.world.share(sees_more) else alone
        return judge(labels_N, probabilities_NC, features, held_out_N)

    def _splits(self) -> list[Split]:
        return [split for split in (self.train, self._held_out()) if split is not None]

    def _seen(self) -> Tensor:
        """[N + H] bool: not of pictures that nobody could read."""
        return torch.cat([seen(split) for split in self._splits()])

    def _held_out(self) -> Split | None:
        """Validation data whose labels arose as those of the training data did."""
        return None if self.validation.given_labels is None else self.validation

    def features(self, model: nn.Module) -> Tensor:
        """[N + H, D], in which neighbours are sought; of a describer computed once."""
        if self._features_ND is not None:
            return self._features_ND
        features_ND = self._describe(model if self.describer is None else self.describer)
        if self.describer is not None:
            self._features_ND = features_ND
        return features_ND

    def _describe(self, network: nn.Module) -> Tensor:
        return torch.cat(
            [extract_features(network, split.inputs, self.world) for split in self._splits()]
        )


def _are_alike(model: nn.Module, other: nn.Module) -> bool:
    """Whether one is a copy of the other."""
    pairs = zip(model.parameters(), other.parameters(), strict=False)
    return all(torch.equal(own, others) for own, others in pairs)


def seen(split: Split) -> Tensor:
    """[N] bool: not of pictures that nobody could read."""
    seen_N = torch.zeros(len(split), dtype=torch.bool)
    seen_N[readable(split.inputs)] = True
    return seen_N


def _in_their_places(judgement: Judgement, seen_N: Tensor, labels_N: Tensor) -> Judgement:
    """The judgement of those seen among all; nothing is said against the other labels."""
    classes = judgement.posterior.shape[1]
    posterior_NC = torch.eye(classes).to(judgement.posterior)[labels_N.to(judgement.wrong.device)]
    wrong_N = judgement.wrong.new_zeros(len(labels_N))
    posterior_NC[seen_N], wrong_N[seen_N] = judgement.posterior, judgement.wrong
    return replace(judgement, posterior=posterior_NC, wrong=wrong_N)
