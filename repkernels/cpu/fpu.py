"""The floating-point state of a CPU thread: compiled code keeps subnormals, whatever its caller has set.

`torch.set_flush_denormal(True)` sets a bit of the calling thread that every later operation of the thread obeys, and
threads it starts inherit it. A compiled function brackets its arithmetic, in each thread that runs any of it:

    state = keep_subnormals()
    ...
    restore(state)
"""

import platform
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Numba prepares LLVM for machine code only, and instructions given as text need its assembler.
binding.initialize_native_asmparser()

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_MACHINE = platform.machine().lower()
_X86 = _MACHINE in ("x86_64", "amd64", "i386", "i686")
_ARM = _MACHINE in ("arm64", "aarch64")

# x86 MXCSR: flush-to-zero is bit 15, denormals-are-zero bit 6. ARM FPCR: FZ is bit 24, FZ16 bit 19, FIZ bit 0.
_FLUSHING = 1 << 15 | 1 << 6 if _X86 else 1 << 24 | 1 << 19 | 1


def _read(builder: ir.IRBuilder) -> Any:
    if _X86:
        slot = cgutils.alloca_once(builder, _I32)
        _asm(builder, ir.VoidType(), "stmxcsr ($0)", "r", [slot])
        return builder.zext(builder.load(slot), _I64)
    if _ARM:
        return _asm(builder, _I64, "mrs $0, fpcr", "=r", [])
    return _I64(0)


def _write(builder: ir.IRBuilder, state: Any) -> None:
    if _X86:
        slot = cgutils.alloca_once(builder, _I32)
        builder.store(builder.trunc(state, _I32), slot)
        _asm(builder, ir.VoidType(), "ldmxcsr ($0)", "r", [slot])
    elif _ARM:
        _asm(builder, ir.VoidType(), "msr fpcr, $0", "r", [state])


def _asm(builder: ir.IRBuilder, result: ir.Type, text: str, constraint: str, args: list[Any]) -> Any:
    """One instruction that no load, store or other such instruction is moved across."""
    signature = ir.FunctionType(result, [arg.type for arg in args])
    return builder.asm(signature, text, f"{constraint},~{{memory}}", args, side_effect=True)


@intrinsic
def keep_subnormals(typingctx: Any) -> Any:
    """Makes the present thread keep subnormal operands and results; returns its former state, for `restore`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        state = _read(builder)
        _write(builder, builder.and_(state, _I64(~_FLUSHING)))
        return state

    return types.int64(), codegen


@intrinsic
def restore(typingctx: Any, state: Any) -> Any:
    """Gives the present thread the state that `keep_subnormals` returned."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        _write(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
