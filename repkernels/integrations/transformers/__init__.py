"""transformers' models, `generate` and continuous batching over this library's operations.

    from repkernels.integrations.transformers import enable
    model = enable(AutoModelForCausalLM.from_pretrained(...), "fixed16")
    model.generate(**inputs, do_sample=True, seed=1)
    model.generate_batch([prompt, another], generation_config, seed=[1, 2])

`enable(model, contract)` makes the model's operations this library's, `disable(model)` transformers' again. `Manager`
is the ContinuousBatchingManager of an enabled model, `Parameters` what a request is sampled by.
"""

from repkernels.integrations.transformers.enabling import UnsupportedModel, disable, enable
from repkernels.integrations.transformers.families import FAMILIES
from repkernels.integrations.transformers.manager import Manager
from repkernels.integrations.transformers.parameters import Parameters
from repkernels.integrations.transformers.versions import UnsupportedVersion

__all__ = ["FAMILIES", "Manager", "Parameters", "UnsupportedModel", "UnsupportedVersion", "disable", "enable"]
