//===- StepOps.td - L1 and L2: one microbatch of one rank -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_STEP_OPS_TD
#define PIPER_STEP_OPS_TD

include "dialect/SymbolOps.td"
include "mlir/Interfaces/ControlFlowInterfaces.td"

// A symbol with one block that sees nothing around it.
class Piper_ContainerOp<string mnemonic, list<Trait> traits = []>
    : Piper_Op<mnemonic, traits # [Symbol, IsolatedFromAbove, SingleBlock,
                                   Piper_BodyNames]> {
  let regions = (region SizedRegion<1>:$body);
}

def Piper_StepOp : Piper_ContainerOp<"step", [NoTerminator, Piper_SymbolUser,
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "describe one microbatch of one rank: forward, loss, backward";
  let description = [{
    At phase `captured` the body is `torch` ops with tags; at `outlined` and
    `bucketed` it is runs of chunks, one per chunk and pass. Block arguments are
    the batch inputs, named by `inputs`; `dims` gives their batch dims, -1 for an
    input that is the same for all microbatches. `microbatches`, `order`, `homes`
    and `axes` (the data axes) are what directives recorded: `homes` has one row,
    or one per microbatch, giving the coordinate of each stage.

    **Constraints**
    - one name and one dim per input
    - a captured step has no runs, an outlined one no torch ops
    - the mesh exists, and so does the order
    - one row of homes, or one per microbatch; rows are equally long

    ```mlir
    piper.step @train phase = outlined mesh = @mesh inputs ["ids"] dims [0] (%ids: tensor<4x8xi64>) {
      %x = run @embed.0$F(%ids) : (tensor<4x8xi64>) -> tensor<4x8x16xf32>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Piper_PhaseAttr:$phase,
                       FlatSymbolRefAttr:$mesh, StrArrayAttr:$inputs,
                       DenseI64ArrayAttr:$dims, OptionalAttr<Piper_Index>:$batch,
                       OptionalAttr<StrArrayAttr>:$axes,
                       OptionalAttr<Piper_Index>:$microbatches,
                       OptionalAttr<FlatSymbolRefAttr>:$order,
                       OptionalAttr<TypedArrayAttrBase<DenseI64ArrayAttr, "rows">>:$homes);
  let assemblyFormat = [{
    $sym_name `phase` `=` `` $phase `mesh` `=` $mesh `inputs` $inputs `dims` $dims
    (`batch` `=` $batch^)? (`axes` $axes^)? (`microbatches` `=` $microbatches^)? (`order` `=` $order^)?
    (`homes` custom<Rows>($homes)^)? custom<ArgumentsAndBody>($body) attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
    /// The coordinate of a stage for a microbatch; 0 where nothing is placed.
    int64_t getHome(int64_t stage, int64_t microbatch);
    /// Whether it says where a stage lies; without homes all lie on coordinate 0.
    bool hasHome(int64_t stage);
  }];
}

def Piper_KernelOp : Piper_ContainerOp<"kernel", [
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>]> {
  let summary = "define a pure function of tensors that a launch executes";
  let description = [{
    The body is `torch` ops. A kernel names no state, tag or module path, so that
    equal computations are one kernel; constants of tensor type and random keys
    are operands. Results are contiguous and alias neither arguments nor each
    other. The name is the heaviest ops and a hash of the content.

    **Constraints**
    - the body holds `torch` ops and one `return`
    - no result is an argument, a view or a result twice

    ```mlir
    piper.kernel @relu$7c1e(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = torch "aten.relu.default"(%x) facts <pure, flops = 4> : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypeAttrOf<FunctionType>:$function_type,
                       OptionalAttr<Piper_CostAttr>:$cost);
  let assemblyFormat = [{
    $sym_name `` custom<SignatureAndBody>($function_type, $body) (`cost` $cost^)? attr-dict
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
}

def Piper_ChunkOp : Piper_ContainerOp<"chunk", [
    DeclareOpInterfaceMethods<OpAsmOpInterface, ["getAsmBlockArgumentNames"]>,
    Piper_SymbolUser]> {
  let summary = "define what one annotation delimits, in one pass of the step";
  let description = [{
    A routine of launches and collectives on streams, the same on every rank of
    the manual axes. A backward chunk is `of` its forward chunk; `dual` says for
    each operand of which result of the forward chunk it is the cotangent, and for
    each result of which operand it is the gradient, as far as this chunk adds it
    up. -1 stands for neither, such as what the forward chunk saved, or for a value
    that is the cotangent of several of different kinds; what a list leaves out is
    -1. A chunk passes on what owns memory, so either of a pair may be seen through
    a view. `stage` is what `place` recorded.

    A chunk of pass B may be cut in two: `input` names the chunk of pass I that
    computes the gradients of inputs, `weight` the chunk of pass W that packs the
    gradients of states. Each says which operands of the whole it takes and which
    results it returns; what I computes for W follows behind those.

    **Constraints**
    - the body holds launches, collectives, local data movement and one `return`
    - `of` is given for B, I and W, and names a chunk of pass F
    - `dual` lists no more operands and results than there are, and for each -1 or
      one of the forward chunk
    - on manual axes a gradient's kind is the dual of its operand's:
      replicated and partial, shard and shard, varying and varying
    - gradients are packed per bucket, once in a chunk
    - `input` and `weight` stand on a chunk of pass B, name chunks of pass I and W
      of the same forward chunk, and return each result of the whole once

    ```mlir
    piper.chunk @layer.0$B pass = B of @layer.0$F dual [-1, 0] -> [0] stage = 0
        (%r: !x, %dy: !x) -> !x { ... }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypeAttrOf<FunctionType>:$function_type,
                       Piper_PassAttr:$pass, OptionalAttr<FlatSymbolRefAttr>:$of,
                       OptionalAttr<DenseI64ArrayAttr>:$dual_results,
                       OptionalAttr<DenseI64ArrayAttr>:$dual_operands,
                       OptionalAttr<Piper_HalfAttr>:$input,
                       OptionalAttr<Piper_HalfAttr>:$weight,
                       OptionalAttr<Piper_Index>:$stage);
  let assemblyFormat = [{
    $sym_name `pass` `=` `` $pass (`of` $of^)?
    (`dual` $dual_results^ `->` $dual_operands)?
    (`input` $input^)? (`weight` $weight^)? (`stage` `=` $stage^)?
    custom<SignatureAndBody>($function_type, $body) attr-dict
  }];
  let hasVerifier = 1;
  let hasRegionVerifier = 1;
  let extraClassDeclaration = [{
    /// In `dual`: an operand that is no cotangent, or a result no gradient.
    static constexpr int64_t noDual = -1;

    /// Sets `dual`, without what says nothing at the ends; removes it if no pair
    /// is left.
    void setDuals(::llvm::ArrayRef<int64_t> results,
                  ::llvm::ArrayRef<int64_t> operands);
  }];
}

def Piper_ReturnOp : Piper_Op<"return", [Pure, Terminator, ReturnLike,
    ParentOneOf<["KernelOp", "ChunkOp"]>]> {
  let summary = "give the results of a kernel or chunk";
  let arguments = (ins Variadic<Piper_Value>:$values);
  let assemblyFormat = "($values^ `:` type($values))? attr-dict";
}

def Piper_TorchOp : Piper_Op<"torch",
    [DeclareOpInterfaceMethods<MemoryEffectsOpInterface>]> {
  let summary = "call an ATen or custom op of PyTorch";
  let description = [{
    The argument template is lossless against the op's schema: operands stand
    where tensors were, also inside lists; everything else is literal. A dtype is
    a type, a device is `#piper.device<rank>`, other Python constants are
    `#piper.const<"torch.contiguous_format">`. What the op does besides its results
    follows from its facts. `recompute` marks what the model itself asks to compute
    again in the backward pass (`torch.utils.checkpoint`). `primals` gives numbers
    to values that forward chunks pass on, `cotangents` names by them what a value
    of the backward pass is the cotangent of, or a term of it: a list for each
    result. `again` is a number that a sort of experts' rows has in common with
    that in the backward pass which does it again.

    **Constraints**
    - every operand appears in the template once, in the order of print:
      positional arguments, then keyword arguments by name
    - `primals` and `cotangents` have a list of numbers for each result

    ```mlir
    %0 = torch "aten.view.default"(%x, [32, 16]) facts <view> : (!x) -> !m
    %1 = torch "aten.sum.dim_IntList"(%x, [0], true, dtype = f32) facts <pure, flops = 64>
        tag <"layer.0" B> : (!x) -> !y
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, StrAttr:$op_name,
                       ArrayAttr:$args, DictionaryAttr:$kwargs,
                       Piper_FactsAttr:$facts, UnitAttr:$recompute,
                       OptionalAttr<Piper_TagAttr>:$tag);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    $op_name `` custom<Template>($inputs, $args, $kwargs) `facts` $facts
    (`recompute` $recompute^)? (`tag` $tag^)? attr-dict `:` functional-type($inputs, $results)
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    bool isView() { return getFacts().getEffect() == Effect::View; }
  }];
}

def Piper_ReadOp : Piper_Op<"read",
    [MemoryEffects<[MemRead<Piper_ReadsState>]>, Piper_SymbolUser, Piper_ResultNames]> {
  let summary = "take the value of a state, or of a bucket's slot, at entry";
  let description = [{
    An update changes the state in place, so what was read is used before it.

    **Constraints**
    - without a slot the symbol is a state; dtype and shape are the state's, the
      shape that of the whole or of the part that a rank holds
    - with a slot it is a bucket that has the slot, and the type is the slot's

    ```mlir
    %w = read @fc.weight : tensor<16x16xf32>
    %p = read @fc.weight$b slot value at 1 : tensor<272xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$symbol, OptionalAttr<Piper_SlotAttr>:$slot,
                       OptionalAttr<Piper_Index>:$at);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat =
      "$symbol (`slot` `` $slot^)? (`at` $at^)? attr-dict `:` type($result)";
}

def Piper_WriteOp : Piper_Op<"write",
    [MemoryEffects<[MemWrite<Piper_ReadsState>]>, Piper_SymbolUser]> {
  let summary = "set a slot that is derived from the value, or a buffer";
  let description = [{
    **Constraints**
    - symbol, slot and type as for `read`

    ```mlir
    write @fc.weight$b slot compute %u at 1 : tensor<136xbf16>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$symbol, OptionalAttr<Piper_SlotAttr>:$slot,
                       AnyRankedTensor:$value, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let assemblyFormat = [{
    $symbol (`slot` `` $slot^)? $value (`at` $at^)? (`after` $after^)? attr-dict
    `:` type($value)
  }];
}

def Piper_GradOp : Piper_Op<"grad", [Piper_Ordered, Piper_SymbolUser]> {
  let summary = "contribute to the gradient of a state";
  let description = [{
    A state has one contribution per chunk that uses it; they are summed.

    **Constraints**
    - the state exists; dtype and shape are the state's, as for `read`

    ```mlir
    grad @fc.weight %dw tag <"layer.0" B> : tensor<16x16xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$state, AnyRankedTensor:$value,
                       OptionalAttr<Piper_TagAttr>:$tag);
  let assemblyFormat = "$state $value (`tag` $tag^)? attr-dict `:` type($value)";
}

def Piper_InputOp : Piper_Op<"input", [Piper_Ordered, Piper_ResultNames]> {
  let summary = "take one microbatch of a batch input";
  let description = [{
    ```mlir
    %ids_0 = input "ids" mb 0 at 1 : tensor<4x8xi64>
    ```
  }];
  let arguments = (ins StrAttr:$input, Piper_Index:$mb, OptionalAttr<Piper_Index>:$at);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$input `mb` $mb (`at` $at^)? attr-dict `:` type($result)";
}

def Piper_TangentOp : Piper_Op<"tangent", [Piper_Ordered, AttrSizedOperandSegments]> {
  let summary = "give the cotangent of a loss: its coefficient over its count";
  let description = [{
    The loss is a sum over examples; its weight in the total is `coeff` divided
    by the global count, or by one if that is zero. A count that depends on the
    data is an operand; `examples` states one that does not, per microbatch and
    rank, until unrolling folds it into the coefficient.

    ```mlir
    %t = tangent "loss" count %n : tensor<i64> coeff 1.0 -> tensor<f32>
    ```
  }];
  let arguments = (ins StrAttr:$loss, Optional<AnyRankedTensor>:$count,
                       F64Attr:$coeff, OptionalAttr<Piper_Index>:$examples,
                       OptionalAttr<Piper_Index>:$at, Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $loss (`count` $count^ `:` type($count))? `coeff` $coeff
    (`examples` $examples^)? (`at` $at^)? (`after` $after^)? attr-dict
    `->` type($result)
  }];
}

def Piper_OutputOp : Piper_Op<"output", [Piper_Ordered, AttrSizedOperandSegments]> {
  let summary = "report a scalar of the step";
  let description = [{
    What is reported is the value times the scale. In a captured step the value
    is the sum of the loss over one microbatch and `count` how many examples it
    counts; from L2 on the scale is the tangent of the loss.

    ```mlir
    output "loss" %l scale %t at 1 : tensor<f32>, tensor<f32>
    ```
  }];
  let arguments = (ins StrAttr:$name, AnyRankedTensor:$value,
                       Optional<AnyRankedTensor>:$scale,
                       OptionalAttr<Piper_Index>:$at, Variadic<Piper_Event>:$after);
  let assemblyFormat = [{
    $name $value (`scale` $scale^)? (`at` $at^)? (`after` $after^)? attr-dict
    `:` type($value) (`,` type($scale)^)?
  }];
}

def Piper_LaunchOp : Piper_Op<"launch", [Piper_Ordered, AttrSizedOperandSegments,
    Piper_SymbolUser]> {
  let summary = "execute a kernel on a stream";
  let description = [{
    `label` names the piece of a chunk that an overlap template moves.

    **Constraints**
    - the kernel exists; its signature equals the types without manual kinds
    - on every manual axis no operand is partial, and results are replicated if all
      operands are, else varying; on auto axes they are what the rules of the
      kernel's ops make of operands, which `piper-verify` checks
    - the stream exists

    ```mlir
    %y, %r = launch @relu$7c1e(%x, %w) as "experts" on @compute : (!x, !w) -> (!x, !m)
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, Variadic<AnyRankedTensor>:$inputs,
                       OptionalAttr<StrAttr>:$label,
                       OptionalAttr<FlatSymbolRefAttr>:$stream,
                       OptionalAttr<Piper_Index>:$mb, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs Variadic<AnyRankedTensor>:$results);
  let assemblyFormat = [{
    $kernel `(` $inputs `)` (`as` $label^)? (`on` $stream^)? (`mb` $mb^)? (`at` $at^)?
    (`after` $after^)? attr-dict `:` functional-type($inputs, $results)
  }];
}

def Piper_RunOp : Piper_Op<"run", [Piper_Ordered, AttrSizedOperandSegments,
    Piper_SymbolUser, Piper_ResultNames]> {
  let summary = "execute a chunk for one microbatch";
  let description = [{
    In a step `mb` and `at` are absent; in a cluster both are given; in a program
    the coordinate is the program's.

    **Constraints**
    - the chunk exists and its signature equals the operand and result types

    ```mlir
    %y, %r = run @layer.0$F(%x, %p) mb 3 at 0 : (!x, !p) -> (!x, !m)
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$chunk, Variadic<Piper_Value>:$inputs,
                       OptionalAttr<Piper_Index>:$mb, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs Variadic<Piper_Value>:$results);
  let assemblyFormat = [{
    $chunk `(` $inputs `)` (`mb` $mb^)? (`at` $at^)? (`after` $after^)? attr-dict
    `:` functional-type($inputs, $results)
  }];
}

def Piper_UnpackOp : Piper_Op<"unpack", [Pure, Piper_SymbolUser]> {
  let summary = "view a bucket's value as its members";
  let description = [{
    No data moves: each member is a view of the flat tensor.

    **Constraints**
    - one result per member, of its shape on one rank
    - the value is the whole bucket of one rank, in the dtype of slot `value` or
      `compute`: replicated or varying, no shard and no partial sum

    ```mlir
    %w, %b = unpack @fc.weight$b %p : !p -> !w, !b
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, AnyRankedTensor:$value);
  let results = (outs Variadic<AnyRankedTensor>:$members);
  let assemblyFormat =
      "$bucket $value attr-dict `:` type($value) `->` type($members)";
}

def Piper_PackOp : Piper_Op<"pack", [Pure, Piper_SymbolUser]> {
  let summary = "take gradients of all members as a contribution to a bucket";
  let description = [{
    The dual of `unpack`, and the one place where a varying gradient becomes
    partial: a rank's loss is its share of the total. No data moves; the
    accumulation adds each member to its part of the bucket.

    **Constraints**
    - one operand per member, of its shape on one rank
    - the result has as many elements as the members have together
    - on manual axes operands are replicated or varying, or sharded as the state is
    - on manual axes the result is the dual of the bucket's members; on auto axes
      operands are as the states are, which `piper-verify` checks

    ```mlir
    %g = pack @fc.weight$b %dw, %db : !w, !b -> !g
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, Variadic<AnyRankedTensor>:$members);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat =
      "$bucket $members attr-dict `:` type($members) `->` type($result)";
}

def Piper_RelabelOp : Piper_Op<"relabel", [Pure]> {
  let summary = "state another kind for the same data";
  let description = [{
    Legal where duality justifies it: a loss or a count that each rank computes
    of its own examples is a partial sum of the total. On auto axes kinds stay,
    which `piper-verify` checks.

    **Constraints**
    - only kinds differ; the shape per rank is the same

    ```mlir
    %1 = relabel %0 : tensor<f32, #V> -> tensor<f32, #P>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$value attr-dict `:` type($value) `->` type($result)";
  let hasVerifier = 1;
}

#endif // PIPER_STEP_OPS_TD
