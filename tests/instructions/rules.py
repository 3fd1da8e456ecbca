"""What a compiled kernel may not contain, in Triton's IR and in the target's assembly.

The IR says what the source asked for; the assembly says what the target does for it. A fused multiply-add, or a product
of tiles, is allowed in the assembly only where the IR has one.
"""

import re
from collections import Counter
from collections.abc import Set

from tests.instructions.compiled import TARGETS, Compiled

FLOAT = r"(?:b?f16|f32|f64)"

# Correctly rounded everywhere, or exact. Other functions are approximated, flush subnormals or differ by target;
# maxnumf and minnumf drop NaN and leave the order of -0 and +0 to the hardware.
FUNCTIONS = {"math.fma", "math.absf", "math.absi"}
FORBIDDEN_OPERATIONS = {
    "arith.remf",
    "arith.maxnumf",
    "arith.minnumf",
    "arith.maximumf",
    "arith.minimumf",
    "tt.extern_elementwise",
    "tt.dot_scaled",
}
MAXIMUM = {"arith.maxnumf", "arith.maximumf"}
EXP2 = {"math.exp2"}
# Assembly in the source may order kernels, fetch into L2 and move bits, and compute nothing.
PREFETCH = r"cp\.async\.bulk\.prefetch\.L2\.global \[\$1\], 1024; mov\.u32 \$0, 0;"
MOVES = r'(?:(?:shl|and|prmt)\.b32 [^";]*; ?)+'
INLINE = rf'tt\.elementwise_inline_asm "(?:griddepcontrol\.[^"]*|{PREFETCH}|{MOVES})"'

PTX = {
    "approximate": r"\.approx|\bdiv\.full|\b(?:ex2|lg2|rcp|rsqrt|sin|cos|tanh)\.(?!rn)",
    "flushes subnormals": r"\.ftz",
    "may be contracted": rf"(?<![.\w])(?:add|sub|mul|fma|mad)\.{FLOAT}",
    "rounds otherwise than to nearest": (
        rf"\b(?:(?:add|sub|mul|fma|div|sqrt)\.r[zmp]\S*|cvt\.r[zmp]\.(?:\S*\.)?{FLOAT}\.){FLOAT}"
    ),
    "TF32": r"[.:]tf32",
    "floating-point atomic": rf"\b(?:atom|red)\.\S*\.{FLOAT}",
}
AMD = {
    "approximate": r"\bv_(?:exp|log|sin|cos)_(?:legacy_)?f\w+|\bv_rsq_(?:legacy_)?f(?!32)\w+",
    "flushes subnormals": r"\bv_(?:mad|mac|mul_legacy|fma_legacy)_(?:legacy_)?f\w+|float_denorm_mode_\w+ [012]\b",
    "TF32": r"\bv_mfma_\S*xf32",
    "floating-point atomic": rf"\b(?:global|flat|buffer|ds)_(?:atomic_)?(?:pk_)?(?:add|min|max)_(?:rtn_)?{FLOAT}",
}

_PTX_TILES = r"^\s*(?:@\S+\s+)?((?:w?mma\S*\.sync|wgmma\.mma_async|tcgen05\.mma)\S*)"
_AMD_TILES = r"^\s*(v_(?:mfma|smfmac|wmma|swmmac|dot\d)\S*)"


def violations(c: Compiled, tiles: Set[str] = frozenset(), maximum: bool = False, exp2: bool = False) -> list[str]:
    """Each forbidden thing in `c`, as "where: what", with the first line that shows it.

    tiles: the operand types that products of tiles may have in this kernel. maximum, exp2: it may take the hardware's.
    """
    found = ["launch: enable_fp_fusion is on"] if c.fusion else []
    if c.shared_memory > TARGETS[c.target].shared_memory:
        found.append(f"launch: {c.shared_memory} bytes of shared memory")
    found += [f"ir: product of {kind} tiles" for kind in sorted(set(dots(c)) - tiles)]
    allowed = (MAXIMUM if maximum else set()) | (EXP2 if exp2 else set())
    if exp2:
        c = c._replace(assembly=re.sub(r"\bex2\.approx(?:\.ftz)?\.f32|\bv_exp_f32", "exp2", c.assembly))
    return found + _in_operations(c.ir, allowed) + _in_reductions(c.ir) + _in_assembly(c)


def dots(c: Compiled) -> Counter[str]:
    """The products of tiles that the source asks for, by operand type: "i8", "f16", "bf16", "f32", "f64"."""
    return Counter(re.findall(r"(?:tt\.dot|ttng\.warp_group_dot|ttng\.tc_gen5_mma) .*? : \S*?<[\dx]+x(\w+)[,>]", c.ir))


def _in_operations(ir: str, allowed: Set[str]) -> list[str]:
    found = []
    for line in ir.splitlines():
        match = re.search(r"(?:^|= )\s*\"?((?:math|arith|tt)\.\w+)", line)
        if not match:
            continue
        operation, types = match[1], line.rsplit(" : ", 1)[-1]
        is_float = re.search(FLOAT, types)
        if operation in FORBIDDEN_OPERATIONS - allowed or (
            operation.startswith("math.") and operation not in FUNCTIONS | allowed
        ):
            found.append(f"ir: {operation}")
        elif operation == "arith.divf" and "f64" not in types:
            # In binary64 it is the correctly rounded division, the only one that Triton 3.6 has.
            found.append(f"ir: {operation}")
        elif operation == "tt.elementwise_inline_asm" and not re.search(INLINE, line):
            found.append(f"ir: {operation}")
        elif operation == "tt.dot" and "f32" in types and re.search(r"inputPrecision = (?!ieee)", line):
            if re.search(r": tensor<[\dx]+xf32>", line):
                found.append(f"ir: {line.split('inputPrecision = ')[1].split(' ')[0]} product")
        elif operation.startswith("tt.atomic") and is_float:
            found.append("ir: floating-point atomic")
    return sorted(set(found))


def _in_reductions(ir: str) -> list[str]:
    """Float sums have one order only over an axis of two elements; other reductions of floats may only select."""
    found = []
    pattern = r'"tt\.(reduce|scan)"\(.*?\) <\{axis = (\d+).*?\(\{(.*?)\}\) : \(tensor<([\dx]+)x(\w+)'
    for kind, axis, body, shape, element in re.findall(pattern, ir, re.S):
        length = int(shape.split("x")[int(axis)])
        computes = re.search(r"arith\.(?:add|sub|mul)f|math\.", body)
        if re.fullmatch(FLOAT, element) and (kind == "scan" or (computes and length > 2)):
            found.append(f"ir: {kind} of {element} over {length} elements")
    return found


def _in_assembly(c: Compiled) -> list[str]:
    name = "ptx" if c.nvidia else "amdgcn"
    code = re.sub(r"//.*|^\s*;.*", "", c.assembly, flags=re.M)
    found = []
    for what, pattern in (PTX if c.nvidia else AMD).items():
        if match := re.search(pattern, code):
            found.append(f"{name}: {what}: {_line(code, match.start())}")
    return found + _in_tiles(c, code, name) + (_in_ptx_fma(c, code) if c.nvidia else _in_amd_sequences(c, code))


def _in_tiles(c: Compiled, code: str, name: str) -> list[str]:
    """Products of tiles run on the units of their type, and on no other."""
    asked = dots(c)
    instructions = re.findall(_PTX_TILES if c.nvidia else _AMD_TILES, code, re.M)
    integer = [i for i in instructions if re.search(r"\.s8|\.u8|kind::i8|i32_\S*i8", i)]
    floating = [i for i in instructions if i not in integer]
    found = []
    if floating and not asked["f16"] + asked["bf16"]:
        found.append(f"{name}: floating-point tile product: {floating[0]}")
    if asked["f16"] + asked["bf16"] and not floating:
        found.append(f"{name}: no floating-point tile product, though the source asks for one")
    if bool(asked["i8"]) != bool(integer):
        found.append(f"{name}: integer tile products: {asked['i8']} in the source, {len(integer)} in the code")
    return found


def _fused(c: Compiled) -> bool:
    return "math.fma" in c.ir or bool(dots(c)["f32"] + dots(c)["f64"])


def _in_ptx_fma(c: Compiled, code: str) -> list[str]:
    # A packed one counts as the two that it is.
    # Before sm_90 a bf16 addition, what is left of one in fp32 rounded to bf16, is written as one of a product with 1.
    ones = "|".join(re.findall(r"\bmov\.b(?:16|32)\s+(%\w+), (?:1065369472|16256|0x3F80);", code))
    code = re.sub(rf"\bfma\.rn\.bf16(?:x2)?\s+%\w+, %\w+, (?:{ones}), %\w+;", "", code) if ones else code
    count = len(re.findall(rf"\bfma\.rn\.{FLOAT}", code)) + len(re.findall(rf"\bfma\.rn\.{FLOAT}x2", code))
    if count and not _fused(c):
        return [f"ptx: {count} fused multiply-adds that the source does not ask for"]
    if not count and _fused(c):
        return ["ptx: no fused multiply-add, though the source asks for them"]
    least = sum(m * k * n for m, k, n in _shapes(c)) // c.threads
    return [f"ptx: {count} fused multiply-adds, {least} needed for the products"] if count < least else []


def _shapes(c: Compiled) -> list[tuple[int, int, int]]:
    """(M, K, N) of each binary32 product of tiles."""
    pattern = r"tt\.dot .*? : tensor<(\d+)x(\d+)xf32> \* tensor<\d+x(\d+)xf32>"
    return [(int(m), int(k), int(n)) for m, k, n in re.findall(pattern, c.ir)]


def _in_amd_sequences(c: Compiled, code: str) -> list[str]:
    """Reciprocals, roots and FMAs stand only in correctly rounded divisions and roots, or where the source has FMAs.

    Divisions of integers start from a reciprocal too, scaled by a constant just below 2^32 or 2^64, and correct it. A
    mixed-format FMA that multiplies by 1 or adds -0 is a single addition or multiplication.
    """
    count = Counter(re.findall(r"^\s*(v_[a-z]+(?:_[a-z]+)*?)_(?:f32|f64|f16|bf16)", code, re.M))
    rooted, divided = "tt.precise_sqrt" in c.ir, "tt.precise_divf" in c.ir or "arith.divf" in c.ir
    found = []
    explained = count["v_div_fixup"] * divided + len(re.findall(r"0x4f7ffff[ec]|0x5f7ffffc", code))
    if count["v_rcp"] > explained:
        found.append(f"amdgcn: approximate: {count['v_rcp']} v_rcp, {explained} of them in divisions")
    # A root that keeps subnormals begins with v_rsq_f32, and corrects it.
    found += [f"amdgcn: approximate: {i}" for i in ("v_sqrt", "v_rsq") if count[i] and not rooted]
    fused = sum(n for i, n in count.items() if re.fullmatch(r"v_(?:pk_)?fm(?:a|ac|amk|aak)", i))
    fused += len(re.findall(r"^\s*v_(?:fma|mad)_mix(?!.*(?: 1\.0,|neg\(0\)))", code, re.M))
    if fused and not (_fused(c) or rooted or divided):
        found.append(f"amdgcn: {fused} fused multiply-adds that the source does not ask for")
    if _fused(c) and not fused:
        found.append("amdgcn: no fused multiply-add, though the source asks for them")
    return found


def _line(code: str, at: int) -> str:
    return " ".join(code[code.rfind("\n", 0, at) + 1 : code.find("\n", at)].split())
