"""Passes of a user's own, for tests: named in strategies as ``toy_passes:NAME``."""

from __future__ import annotations

from typing import Any

from piper.frontend.torch_op import torch_op
from piper.mlir import ir
from piper.mlir.dialects import piper
from piper.mlir.passmanager import PassManager
from piper.mlir.rewrite import PatternRewriter, RewritePatternSet, walk_and_apply_patterns


def steps(module: ir.Module) -> list[piper.StepOp]:
    return [op for op in module.body.operations if isinstance(op, piper.StepOp)]


def add_stream(module: ir.Module, *, name: str, priority: int = 0) -> bool:
    """Declare a stream, at the end and without a location of its own."""
    with ir.InsertionPoint(module.body):
        piper.StreamOp(sym_name=name, priority=priority)
    return True


def expect(module: ir.Module, *, phase: str, recorded: bool = False, clusters: int = 0) -> None:
    """Only look."""
    for step in steps(module):
        assert str(step.phase) == f"#piper<phase {phase}>"
        assert ("microbatches" in step.operation.attributes) == recorded
    assert sum(isinstance(op, piper.ClusterOp) for op in module.body.operations) == clusters


def record(module: ir.Module, **options: Any) -> None:
    """Raise an error that shows what the pass was called with."""
    raise RuntimeError(f"called with {options}")


def fail_inside(module: ir.Module) -> None:
    steps(module)[0].operation.attributes["nothing"]


def find_nothing(module: ir.Module) -> bool:
    return False


def return_text(module: ir.Module) -> str:
    return "done"


def rename_kernels(module: ir.Module) -> None:
    """Leave launches without what they launch."""
    for op in module.body.operations:
        if isinstance(op, piper.KernelOp):
            op.operation.attributes["sym_name"] = ir.StringAttr.get(f"{op.sym_name.value}x")


def drop_accumulation(module: ir.Module) -> bool:
    """Leave a cluster of valid ops, in which one contribution to a gradient is lost."""
    for cluster in (op for op in module.body.operations if isinstance(op, piper.ClusterOp)):
        for op in cluster.body.blocks[0].operations:
            if isinstance(op, piper.AccumulateOp) and op.onto is not None:
                op.result.replace_all_uses_with(op.onto)
                op.operation.erase()
                return True
    return False


def clamp_for_relu(module: ir.Module) -> bool:
    """Compute the same with another op, in all kernels."""
    found = []

    def rewrite(op: piper.TorchOp, rewriter: PatternRewriter) -> bool:
        if op.op_name.value != "aten.relu.default":
            return True
        with rewriter.ip, op.location:
            rewriter.replace_op(op, torch_op("aten.clamp_min.default", op.inputs[0], 0))
        found.append(op)
        return False

    patterns = RewritePatternSet()
    patterns.add(piper.TorchOp, rewrite)
    walk_and_apply_patterns(module.operation, patterns.freeze())
    return bool(found)


def add_pass(module: ir.Module, *, function: str) -> None:
    """Rewrite the strategy itself: another pass, at the point of this one."""
    strategy = next(op for op in module.body.operations if isinstance(op, piper.StrategyOp))
    with ir.InsertionPoint(strategy.body.blocks[0]):
        piper.DoUserPassOp(function=function, at="step")


def drop_strategy(module: ir.Module) -> None:
    next(op for op in module.body.operations if isinstance(op, piper.StrategyOp)).erase()


def reduce_late(module: ir.Module) -> bool:
    """Lower, and let the last coordinate issue the tied gradient's sum behind that of the norm."""
    PassManager.parse("builtin.module(piper-lower-programs)").run(module.operation)
    program = [op for op in module.body.operations if isinstance(op, piper.ProgramOp)][1]
    sums = [op for op in program.body.blocks[0].operations if isinstance(op, piper.AllReduceOp)]
    gradient, norm = (
        next(op for op in sums if str(op.stream) == f"@reduce.{axes}$0.1")
        for axes in ("dp.pp", "pp")
    )
    gradient.operation.move_after(norm.operation)
    return True
