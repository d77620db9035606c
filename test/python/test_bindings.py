"""The bindings know the dialect and the passes, and show attributes."""

from piper.mlir import ir, passmanager
from piper.mlir.dialects import piper


def test_op_is_built_with_visible_attributes() -> None:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            stream = piper.StreamOp(sym_name="pp", priority=1)
        assert module.operation.verify()
        assert sorted(stream.operation.attributes) == ["priority", "sym_name"]
        assert str(stream) == "piper.stream @pp priority = 1"


def test_passes_are_registered() -> None:
    with ir.Context():
        pipeline = "builtin.module(piper-verify,cse,symbol-dce,strip-debuginfo)"
        passes = passmanager.PassManager.parse(pipeline)
        passes.run(ir.Module.parse("module {}").operation)
        printed = str(passes)
        limits = "max-communicators=0 max-memory=0 max-sms=0"
        assert f"piper-verify{{{limits} single-queue=false}}" in printed
        assert str(passmanager.PassManager.parse(printed)) == printed


def test_limits_of_lowered_programs_are_those_of_verify() -> None:
    with ir.Context():
        limits = "max-communicators=3 max-memory=5000000000 max-sms=7"
        for queue in ("single-queue=false", "single-queue=true"):
            lower = f"builtin.module(piper-lower{{{limits} {queue}}})"
            printed = str(passmanager.PassManager.parse(lower))
            assert f"piper-lower-programs,piper-verify{{{limits} {queue}}}" in printed
