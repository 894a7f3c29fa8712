"""The Triton interpreter made fit for tests: bfloat16 that computes, and hardware's silence.

Triton's interpreter keeps bfloat16 as raw 16-bit words and lets NumPy work on those words, so
sums, products, comparisons and dot products of bfloat16 operands are wrong, and float32 is
truncated instead of rounded when it is stored. Kernels must not be written around a fault of a
test tool, so it is mended here: operands are widened to float32, results rounded to nearest even,
which is what the hardware does. Known for Triton 3.7.1 and 3.9.0, and so is the type of a
condition spread over a tile, which 3.9 refuses as a mask.

``TRITON_INTERPRET`` decides when Triton is first imported, for the whole process: import this
module, or the conftest of this folder, before any kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)

# Every elementwise method of the interpreter's builder goes through one of these four.
_WIDENED = ("unary_op", "binary_op", "ternary_op")


def widen(words: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Values of bfloat16 words; exact."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Words of the bfloat16 numbers nearest to the values, ties to even, NaN quiet."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    words = (rounded >> np.uint32(16)).astype(np.uint16)
    quiet = ((bits >> np.uint32(16)) | np.uint32(0x40)).astype(np.uint16)
    return np.where(np.isnan(single), quiet, words).astype(np.uint16)


@contextmanager
def hardware_arithmetic() -> Iterator[None]:
    """NaN and overflow are results, not warnings, as they are on a GPU."""
    with np.errstate(all="ignore"):
        yield


def install() -> None:
    """Mend the interpreter of this process; once, and only where kernels are interpreted."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, ReduceOps

    if not isinstance(tl.sum, InterpretedFunction):
        raise RuntimeError(
            "triton was imported before TRITON_INTERPRET=1 was set: set it in the environment"
        )
    if getattr(InterpreterBuilder, "computes_bfloat16", False):
        return
    InterpreterBuilder.computes_bfloat16 = True
    for name in _WIDENED:
        original = getattr(InterpreterBuilder, name)
        setattr(InterpreterBuilder, name, _widened(interpreter, original))
    InterpreterBuilder.create_fma = _fma(interpreter)
    InterpreterBuilder.cast_impl = _cast(interpreter, InterpreterBuilder.cast_impl)
    InterpreterBuilder.create_fp_to_fp = _cast(interpreter, InterpreterBuilder.create_fp_to_fp)
    InterpreterBuilder.create_dot = _dot(interpreter, InterpreterBuilder.create_dot)
    InterpreterBuilder.create_splat = _splat(interpreter)
    ReduceOps.sum = _reduction(interpreter, ReduceOps.sum)
    ReduceOps.min_max = _reduction(interpreter, ReduceOps.min_max)
    InterpretedFunction.__call__ = _call(interpreter)
    interpreter._get_np_dtype = _numpy_type(interpreter._get_np_dtype)


def _call(interpreter: Any) -> Callable[..., Any]:
    """A call of a device function that does not replace all of ``tl`` when that is done already.

    Triton does it at each call, which is half the time of a kernel that calls functions.
    """

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        for module in self.fn.__globals__.values():
            if (module is tl or module is tl.core) and tl.core.is_builtin(module.load):
                interpreter._patch_lang(self.fn)
                break
        return self.rewrite()(*arguments, **options)

    return call


def _numpy_type(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The NumPy type of a Triton type from a table; Triton builds the table at each call."""
    known: dict[str, Any] = {}

    def numpy_type(kind: Any) -> Any:
        scalar = kind.scalar
        if isinstance(scalar, tl.pointer_type):
            return original(scalar)
        if scalar.name not in known:
            known[scalar.name] = original(scalar)
        return known[scalar.name]

    return numpy_type


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16) and handle.data.dtype == np.uint16


def _wide(interpreter: Any, handle: Any) -> Any:
    """The handle itself, or its float32 values."""
    if not hasattr(handle, "dtype") or not _is_bfloat16(handle):
        return handle
    return interpreter.TensorHandle(widen(handle.data), tl.float32)


def _narrow(interpreter: Any, handle: Any) -> Any:
    """A float result as bfloat16; comparisons stay what they are."""
    if not np.issubdtype(handle.data.dtype, np.floating):
        return handle
    return interpreter.TensorHandle(narrow(handle.data), tl.bfloat16)


def _widened(interpreter: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any) -> Any:
        *handles, operation = arguments
        if not any(_is_bfloat16(handle) for handle in handles):
            return original(self, *arguments)
        wide = [_wide(interpreter, handle) for handle in handles]
        return _narrow(interpreter, original(self, *wide, operation))

    return method


def _fma(interpreter: Any) -> Callable[..., Any]:
    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype == np.float64:
            return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        # The product of two float32 is exact in float64; the interpreter would round it first.
        wide = [_wide(interpreter, handle).data.astype(np.float64) for handle in (x, y, z)]
        total = wide[0] * wide[1] + wide[2]
        if _is_bfloat16(z):
            return interpreter.TensorHandle(narrow(total), tl.bfloat16)
        return interpreter.TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)

    return create_fma


def _cast(interpreter: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, source: Any, target: Any, *rounding: Any) -> Any:
        to_bfloat16 = target.scalar == tl.bfloat16
        if not _is_bfloat16(source) and not to_bfloat16:
            return original(self, source, target, *rounding)
        values = _wide(interpreter, source)
        if to_bfloat16:
            if values.dtype.scalar.is_fp8():
                values = original(self, values, tl.float32, *rounding)
            return interpreter.TensorHandle(narrow(values.data), tl.bfloat16)
        if target.scalar == tl.float32:
            return values
        return original(self, values, target, *rounding)

    return cast


def _dot(interpreter: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *options: Any) -> Any:
        wide = [_wide(interpreter, handle) for handle in (a, b, accumulator)]
        result = original(self, *wide, *options)
        return _narrow(interpreter, result) if _is_bfloat16(accumulator) else result

    return create_dot


def _splat(interpreter: Any) -> Callable[..., Any]:
    """A scalar spread over a tile, in the type the tile was declared with.

    Triton takes the type of the handle, which for a comparison is that of its operands: a scalar
    condition becomes a tile of whole numbers, which 3.7 takes for a mask and 3.9 refuses.
    """

    def create_splat(self: Any, kind: Any, handle: Any) -> Any:
        values = np.empty(kind.shape, dtype=interpreter._get_np_dtype(kind))
        values[...] = handle.data.reshape(-1)[0]
        return interpreter.TensorHandle(values, kind.scalar)

    return create_splat


def _reduction(interpreter: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(self: Any, values: Any, *arguments: Any, **options: Any) -> Any:
        source = values[0] if isinstance(values, tuple) else values
        if not _is_bfloat16(source.handle):
            return original(self, values, *arguments, **options)
        handle = _wide(interpreter, source.handle)
        shape = list(source.shape)
        kind = tl.block_type(tl.float32, shape) if shape else tl.float32
        result = original(self, tl.tensor(handle, kind), *arguments, **options)
        parts = result if isinstance(result, tuple) else (result,)
        narrowed = tuple(_narrow_tensor(interpreter, part) for part in parts)
        return narrowed if isinstance(result, tuple) else narrowed[0]

    return reduce


def _narrow_tensor(interpreter: Any, tensor: Any) -> Any:
    handle = _narrow(interpreter, tensor.handle)
    if handle is tensor.handle:
        return tensor
    shape = list(tensor.shape)
    return tl.tensor(handle, tl.block_type(tl.bfloat16, shape) if shape else tl.bfloat16)
