"""By which rule and with which weights an answer was made: what two machines must share for the same bits."""

from typing import Any, NamedTuple

from repkernels import NUMERICS_VERSION
from repkernels.digest import digest


class Fingerprint(NamedTuple):
    """numerics: SPEC.md's version. contract: of the contractions. weights: `digest` of the model's state_dict."""

    numerics: int
    contract: str
    weights: str

    def __str__(self) -> str:
        return f"repkernels-{self.numerics}-{self.contract}-{self.weights}"

    def differences(self, other: "Fingerprint") -> list[str]:
        """A line for each part that differs."""
        parts = zip(self._fields, self, other, strict=True)
        return [f"{name}: {mine} here, {theirs} recorded" for name, mine, theirs in parts if mine != theirs]


def fingerprint(model: Any, contract: str) -> Fingerprint:
    """Of a model that is enabled under the contract."""
    return Fingerprint(NUMERICS_VERSION, contract, digest(model))
