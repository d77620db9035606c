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
        assert "piper-verify{max-communicators=0 single-queue=false}" in printed
        assert str(passmanager.PassManager.parse(printed)) == printed
