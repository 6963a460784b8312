"""What an exported graph can do without: constants folded, operations that change nothing or can be one taken out.

onnxscript's own `optimize` does the same, with one rule more: two slices as a split. Its search goes through the whole
graph for every node, which takes minutes for the thousands of nodes of a recurrent network.
"""

from __future__ import annotations

from typing import Any

__all__ = ["simplify"]

ROUNDS = 2  # as in onnxscript: what is rewritten may be constant now
RULES = """
    add_0 sub_0 mul_by_1 div_by_1 cast_cast no_op_cast no_op_expand no_op_transpose transpose_transpose
    reshape_reshape unsqueeze_unsqueeze squeeze_reshape_1d flatten_to_reshape materialize_reshape_shape
    one_reshape_matmul_reshape two_reshapes_matmul_reshape collapse_slice collapse_slice2 cast_constant_of_shape
    cast_constant_of_shape_without_value min_min max_max min_max max_min successive_relu successive_clip
    successive_clip_relu successive_relu_clip no_op_static_scatter_nd no_op_dynamic_scatter_nd
    normalize_pad_format_conv fuse_pad_into_conv fuse_batchnorm_into_conv fuse_batchnorm_into_conv_transpose
    fuse_batchnorm_into_gemm remove_optional_bias_from_conv remove_optional_bias_from_conv_transpose
    remove_optional_bias_from_gemm
""".split()


def simplify(model: Any, largest: int) -> None:
    """Simplify an `onnx_ir.Model`, in place; constants of more than `largest` numbers stay as they are."""
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common

    rules = [getattr(common, f"{name}_rule") for name in RULES]
    optimizer.inline(model)
    for _ in range(ROUNDS):
        optimizer.fold_constants(model, onnx_shape_inference=True, input_size_limit=largest, output_size_limit=largest)
        rewriter.rewrite(model, rules)
    for tidy in (
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        tidy(model)
