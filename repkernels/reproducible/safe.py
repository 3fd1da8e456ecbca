"""torch's own operations that give the same bits everywhere, each with the reason; they run as they are.

A name stands for all of its overloads and for its in-place and out= forms. What is not here and not this library's is
not reproducible. Three reasons, and what they rest on:

MOVE: elements are copied, chosen or laid out otherwise, whatever their dtype; nothing is computed.
IEEE: each element of the result is one operation of real operands that IEEE-754 defines exactly or rounds once, in the
operands' format, half types widened and rounded once more; or a comparison, or a choice by one.
EXACT: integers, bool, counts and positions, in any order the same.
"""

MOVE = "moves elements"
IEEE = "one IEEE operation on each element"
EXACT = "exact in any order"

_MOVES = """
_assert_async _assert_scalar _assert_tensor_metadata _chunk_cat _conj _foreach_copy _foreach_zero
_functional_assert_async _local_scalar_dense _neg_view _pin_memory _reshape_alias _reshape_copy _to_copy _unsafe_index
_unsafe_view alias alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d
block_diag broadcast_to cat channel_shuffle chunk clone column_stack combinations concat concatenate conj
conj_physical constant_pad_nd contiguous copy copy_ detach detach_copy diag diag_embed diagonal diagonal_backward
diagonal_copy diagonal_scatter dsplit dstack embedding empty empty_like empty_permuted empty_strided expand expand_as
expand_copy eye fill fill_diagonal_ flatten flip fliplr flipud full full_like gather hsplit hstack im2col imag index
index_fill index_select is_pinned is_same_size item lift lift_fresh lift_fresh_copy mH mT masked_fill masked_scatter
masked_select matrix_H max_unpool2d max_unpool3d meshgrid moveaxis movedim narrow narrow_copy native_channel_shuffle
new_empty new_empty_strided new_full new_ones new_zeros numpy_T ones ones_like permute permute_copy pin_memory
pixel_shuffle pixel_unshuffle positive ravel real record_stream reflection_pad1d reflection_pad2d reflection_pad3d
repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as resize resize_
resize_as resize_as_ resolve_conj resolve_neg roll rot90 scalar_tensor select select_backward select_copy
select_scatter set_ slice slice_backward slice_copy slice_scatter split split_copy split_with_sizes
split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims sym_is_contiguous sym_numel sym_size
sym_storage_offset sym_stride t t_copy take take_along_dim tensor_split tile to transpose transpose_copy tril triu
unbind unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze
unsqueeze_copy value_selecting_reduction_backward view view_as view_as_complex view_as_real view_copy vsplit vstack
where zero zero_ zeros zeros_like
"""

_IEEE = """
__and__ __lshift__ __or__ __rshift__ __xor__ _amp_foreach_non_finite_check_and_unscale _amp_update_scale abs absolute
bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil copysign equal fix floor
frac frexp hardshrink hardshrink_backward hardtanh_backward heaviside is_nonzero isfinite isinf isnan isneginf
isposinf isreal logical_and logical_not logical_or logical_xor mul multiply nan_to_num neg negative nextafter
round.default sgn sign signbit softshrink_backward square threshold threshold_backward trunc
"""

_EXACT = """
_is_all_true _is_any_true _linalg_check_errors _unique _unique2 all any argwhere bucketize count_nonzero is_complex
is_floating_point isin nonzero nonzero_numpy nonzero_static one_hot searchsorted tril_indices triu_indices
unique_consecutive unique_dim
"""


def _table() -> dict[str, str]:
    groups = ((_MOVES, MOVE), (_IEEE, IEEE), (_EXACT, EXACT))
    return {name: reason for names, reason in groups for name in names.split()}


SAFE = _table()

# Arithmetic that is exact, or wraps, where all operands and the result are integers or bool.
ON_INTEGERS = frozenset(
    """
add addbmm addcmul addmm addmv addr amax amin argmax argmin baddbmm bincount bmm clamp clamp_max clamp_min clip
cummax cummin cumprod cumsum div.Scalar_mode div.Tensor_mode dot fmod floor_divide gcd index_add kthvalue lcm
linear matmul max maximum median min minimum mm mv outer pow prod remainder rsub scatter_add sub subtract sum vdot
max_pool1d max_pool2d max_pool3d nansum logical_xor scatter_reduce index_reduce trace diff arange aminmax
    """.split()
)
