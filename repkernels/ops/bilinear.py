"""A bilinear form (SPEC.md, "bilinear"): two contractions, each stored in the operands' type, and the bias."""

from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.ops import checks
from repkernels.ops.matmul import matmul
from repkernels.ops.plain import add


def bilinear(
    input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None, *, contract: ContractLike | None = None
) -> Tensor:
    """sum_ij input1_i * weight_oij * input2_j + bias_o, torch.nn.functional.bilinear's signature.

    input1: (..., in1). input2: (..., in2). weight: (out, in1, in2). bias: (out,). Result: (..., out).
    For each sample n and output o: t_j = the contraction of input1_n with weight_o over i; then that of t with input2_n
    over j, as `repkernels.matmul`; + bias, one addition. contract: of both. Differentiable twice.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, and as `repkernels.matmul`.
    """
    tensors = {"input1": input1, "input2": input2, "weight": weight, "bias": bias}
    for name, x in tensors.items():
        if x is not None or name != "bias":
            checks.operand(name, x)
    dtype = checks.autocast(checks.device_type(input1))
    if dtype is not None:
        input1, input2, weight = (checks.cast(x, dtype) for x in (input1, input2, weight))
        bias = None if bias is None else checks.cast(bias, dtype)
    for name, x in (("input2", input2), ("weight", weight), ("bias", bias)):
        if x is not None:
            checks.same(name, x, "input1", input1)
    if weight.ndim != 3:
        raise RuntimeError(f"weight: expected (out, in1, in2), got shape {tuple(weight.shape)}")
    if input1.ndim == 0 or input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(
            f"input1 and input2: shapes {tuple(input1.shape)} and {tuple(input2.shape)} must be equal but for the last"
        )
    for name, x, axis in (("input1", input1, 1), ("input2", input2, 2)):
        if x.shape[-1] != weight.shape[axis]:
            raise RuntimeError(f"{name}: last size {x.shape[-1]} differs from weight's size {weight.shape[axis]}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"bias: expected shape {(weight.shape[0],)}, got {tuple(bias.shape)}")
    left, right = (x.reshape(-1, x.shape[-1]) for x in (input1, input2))
    inner = matmul(left, weight, contract=contract).transpose(0, 1)
    result = matmul(inner, right.unsqueeze(2), contract=contract).squeeze(2)
    if bias is not None:
        result = add(result, bias)
    return result.reshape(*input1.shape[:-1], weight.shape[0])
