"""Every kernel, compiled for a target of each kind, holds no instruction whose bits depend on the target."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.instructions.compiled import Compiled
from tests.instructions.rules import violations

ROOT = Path(__file__).parents[1]
# The longest first. The other targets multiply tiles as one of these does: `make instructions` compiles for them too.
TARGETS = ("sm_90", "gfx942", "sm_80")


def instructions(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.instructions` in a process of its own, since this one may have Triton's interpreter on."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.instructions", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_hold_nothing_forbidden(target: str) -> None:
    done = instructions(target) if target == "sm_90" else instructions("--few", target)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{target}: " in done.stdout


@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
def test_each_forbidden_thing_is_caught(target: str) -> None:
    """One target of each generation of tensor cores, and AMD: a rule that catches nothing would prove nothing."""
    done = instructions("--forbidden", target)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    for name, places in EXPECTED.items():
        assembly = "amdgcn" if target.startswith("gfx") else "ptx"
        wanted = {place.replace("assembly", assembly) for place in places}
        found = re.search(rf"\b{name} \((.*?)\)", done.stdout)
        assert found and wanted <= set(found[1].split(", ")), f"{name}: {wanted}\n{done.stdout}"


# Where each is caught on every target: in what the source says (ir), in what the target does for it, in the launch.
EXPECTED = {
    "exp": ("assembly", "ir"),
    "exp2": ("assembly", "ir"),
    "log": ("assembly", "ir"),
    "sin": ("assembly", "ir"),
    "sqrt": ("assembly", "ir"),
    "rsqrt": ("assembly", "ir"),
    "erf": ("assembly", "ir"),
    "floor": ("ir",),
    "divide": ("ir",),
    "maximum": ("ir",),
    "scan": ("ir",),
    "sum": ("ir",),
    "fusion": ("assembly", "launch"),
    "atomic": ("assembly", "ir"),
    "tf32": ("assembly", "ir"),
    "float_tensor_core": ("ir",),
}

INT8 = "%1 = tt.dot %a, %b, %c : tensor<32x32xi8> * tensor<32x32xi8> -> tensor<32x32xi32>"
CHAINS = "%1 = tt.dot %a, %b, %c, inputPrecision = ieee : tensor<32x32xf32> * tensor<32x32xf32> -> tensor<32x32xf32>"


@pytest.mark.parametrize(
    ("target", "ir", "assembly", "wrong"),
    [
        ("sm_90", "", "red.global.add.f32 [%rd1], %f1;", "floating-point atomic"),
        ("sm_90", "", "@%p1 atom.global.gpu.acq_rel.add.noftz.bf16 %h1, [%rd1], %h2;", "floating-point atomic"),
        ("sm_90", "", "red.global.add.u64 [%rd1], %rd2;", None),
        ("sm_90", "", "mul.f32 %f1, %f2, %f3;", "may be contracted"),
        ("sm_90", "", "mul.rn.f32 %f1, %f2, %f3;", None),
        ("sm_90", "", "add.rz.f32 %f1, %f2, %f3;", "rounds otherwise"),
        ("sm_90", "", "cvt.rz.bf16.f32 %h1, %f1;", "rounds otherwise"),
        ("sm_90", "", "cvt.rzi.s32.f32 %r1, %f1;", None),
        ("sm_90", "", "fma.rn.f32 %f1, %f2, %f3, %f4;", "the source does not ask for"),
        ("sm_90", "%1 = math.fma %a, %b, %c : f32", "add.rn.f32 %f1, %f2, %f3;", "no fused multiply-add"),
        ("sm_90", CHAINS, "fma.rn.f32 %f1, %f2, %f3, %f4;", "256 needed"),
        ("sm_90", CHAINS.replace("ieee", "tf32x3"), "fma.rn.f32 %f1, %f2, %f3, %f4;\n" * 256, "tf32x3 product"),
        ("sm_90", CHAINS, "fma.rn.f32 %f1, %f2, %f3, %f4;\n" * 256, None),
        ("sm_90", INT8, "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%r1}, %rd1, %rd2, 1;", None),
        ("sm_90", INT8, "fence.sc.cta;", "integer tile products"),
        ("sm_90", "", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1};", "floating-point tile product"),
        ("sm_100", "", "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2;", "floating-point tile product"),
        ("sm_90", 'tt.elementwise_inline_asm "ex2.approx.f32 $0, $1;" : f32', "", "inline_asm"),
        ("sm_90", 'tt.elementwise_inline_asm "griddepcontrol.wait; // $0" : i32', "", None),
        ("gfx942", "", ".amdhsa_float_denorm_mode_32 0", "flushes subnormals"),
        ("gfx942", "", ".amdhsa_float_denorm_mode_32 3", None),
        ("gfx942", "", "\tv_rcp_f32_e32 v1, v2", "approximate"),
        ("gfx942", "", "\tv_rcp_f32_e32 v1, v2\n\tv_mul_f32_e32 v1, 0x4f7ffffe, v1", None),
        ("gfx942", "", "\tglobal_atomic_pk_add_bf16 v0, v1, s[0:1]", "floating-point atomic"),
        ("gfx942", "", "\tv_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", "floating-point tile product"),
        ("gfx942", INT8, "\tv_mfma_i32_32x32x16_i8 a[0:15], v[0:1], v[2:3], a[0:15]", None),
        ("gfx942", "", "\tv_fma_mix_f32 v1, v2, v3, v4 op_sel_hi:[1,0,0]", "the source does not ask for"),
        ("gfx942", "", "\tv_fma_mix_f32 v1, v2, v3, neg(0) op_sel_hi:[1,0,0]", None),
        ("gfx942", "", "\tv_mac_f32_e32 v1, v2, v3", "flushes subnormals"),
    ],
)  # fmt: skip
def test_rules_on_single_instructions(target: str, ir: str, assembly: str, wrong: str | None) -> None:
    code = Compiled("kernel", target, ir, assembly, threads=128, shared_memory=0, fusion=False)
    found = violations(code, frozenset({"i8", "f32"}))
    assert not found if wrong is None else any(wrong in what for what in found), found


def test_too_much_shared_memory_is_wrong() -> None:
    code = Compiled("kernel", "sm_120", "", "", threads=128, shared_memory=101377, fusion=False)
    assert violations(code) == ["launch: 101377 bytes of shared memory"]


def test_an_unknown_target_is_refused() -> None:
    done = instructions("sm_75x")
    assert done.returncode == 2
    assert "unknown target" in done.stderr
