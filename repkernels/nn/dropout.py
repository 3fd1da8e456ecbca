"""torch.nn's dropout layers: masks by seed, stream and element index (SPEC.md, "Dropout")."""

import torch
from torch import Tensor

from repkernels.ops import dropout


class Dropout(torch.nn.Dropout):
    """torch.nn.Dropout, as `nn.functional.dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.dropout(input, self.p, self.training, self.inplace)


class Dropout1d(torch.nn.Dropout1d):
    """torch.nn.Dropout1d, as `nn.functional.dropout1d`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(torch.nn.Dropout2d):
    """torch.nn.Dropout2d, as `nn.functional.dropout2d`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(torch.nn.Dropout3d):
    """torch.nn.Dropout3d, as `nn.functional.dropout3d`."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(torch.nn.AlphaDropout):
    """torch.nn.AlphaDropout, as `nn.functional.alpha_dropout`; as in torch, it has no in-place form."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(torch.nn.FeatureAlphaDropout):
    """torch.nn.FeatureAlphaDropout, as `nn.functional.feature_alpha_dropout`; as in torch, it has no in-place form."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout.feature_alpha_dropout(input, self.p, self.training)
