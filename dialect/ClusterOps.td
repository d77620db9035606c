//===- ClusterOps.td - L3: every microbatch, all communication --------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_CLUSTER_OPS_TD
#define PIPER_CLUSTER_OPS_TD

include "dialect/StepOps.td"

def Piper_ClusterOp : Piper_ContainerOp<"cluster", [NoTerminator,
    NoRegionArguments, Piper_SymbolUser]> {
  let summary = "hold the training step of all ranks, with all communication";
  let description = [{
    One block of runs with microbatch and coordinate. Block order means nothing
    until phase `ordered`; from then on the order of a stream of a coordinate is
    the projection of block order.

    | phase | holds besides |
    |---|---|
    | unrolled | values may be used at another coordinate than where they arise |
    | connected | they may not: every crossing is a transfer |
    | reduced | every partial sum is reduced before it is used, states are updated |
    | ordered | sums of gradients are accumulations; block order is issue order |

    **Constraints**
    - the mesh exists, and so does the order

    ```mlir
    piper.cluster @train$3 of @train phase = ordered mesh = @mesh microbatches = 2 { ... }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefAttr:$of,
                       Piper_PhaseAttr:$phase, FlatSymbolRefAttr:$mesh,
                       OptionalAttr<FlatSymbolRefAttr>:$order,
                       Piper_Index:$microbatches);
  let assemblyFormat = [{
    $sym_name `of` $of `phase` `=` `` $phase `mesh` `=` $mesh (`order` `=` $order^)?
    `microbatches` `=` $microbatches $body attr-dict
  }];
  let extraClassDeclaration = [{
    ::mlir::Block &getBlock() { return getBody().front(); }
  }];
}

def Piper_TransferOp : Piper_Op<"transfer", [Piper_Ordered,
    AllTypesMatch<["value", "result"]>, Piper_SymbolUser, Piper_ResultNames]> {
  let summary = "move a value to another coordinate";
  let description = [{
    One op, with both ends: a send and a receive that nobody can mismatch. There
    is one per value and destination, shared by the forward and the backward pass.
    The label says which value it is, by the chunk that makes it, in every
    microbatch the same; it stays on both ends.

    **Constraints**
    - source and destination differ
    - the size is known: no dim is `?`
    - the stream exists
    - from phase `connected` on, the value arises at the source and is used at the
      destination (`piper-verify`)

    ```mlir
    %1 = transfer %0 from 0 to 1 mb 2 as "layer.0$F#0" on @pp : !x
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value, Piper_Index:$from, Piper_Index:$to,
                       Piper_Index:$mb, OptionalAttr<StrAttr>:$label,
                       OptionalAttr<FlatSymbolRefAttr>:$stream);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $value `from` $from `to` $to `mb` $mb (`as` $label^)? (`on` $stream^)? attr-dict
    `:` type($result)
  }];
  let hasVerifier = 1;
}

// One operand and result per coordinate in a cluster; in a program one operand,
// and an event as the last result. Of every collective:
// - its parent is a step, a chunk, a cluster or a program, so that no op decides
//   whether a rank takes part
// - more than one operand needs `across`
// - `over` names manual or auto axes of the mesh, `across` its unrolled axis
// - the stream or communicator exists
// - layouts name the same axes before and after, and keep the kinds that the
//   collective does not change
class Piper_Collective<string mnemonic, dag extra, list<Trait> traits = []>
    : Piper_Op<mnemonic, traits # [Piper_Ordered, AttrSizedOperandSegments,
        ParentOneOf<["StepOp", "ChunkOp", "ClusterOp", "ProgramOp"]>,
        DeclareOpInterfaceMethods<Piper_CollectiveOp>, Piper_SymbolUser,
        Piper_ResultNames]> {
  let arguments = !con((ins Variadic<AnyRankedTensor>:$inputs,
                            OptionalAttr<DenseI64ArrayAttr>:$at, StrArrayAttr:$over,
                            OptionalAttr<StrAttr>:$across,
                            OptionalAttr<StrAttr>:$label,
                            OptionalAttr<Piper_Index>:$mb,
                            OptionalAttr<FlatSymbolRefAttr>:$stream,
                            Variadic<Piper_Event>:$after), extra);
  let results = (outs Variadic<Piper_Result>:$results);
  let hasVerifier = 1;
}

defvar CollectiveHead = "$inputs (`at` $at^)? ";
defvar CollectiveTail = [{
  `over` $over (`across` $across^)? (`as` $label^)? (`mb` $mb^)?
  (`on` $stream^)? (`after` $after^)? attr-dict `:` type($inputs) `->` type($results)
}];

def Piper_AllReduceOp : Piper_Collective<"all_reduce", (ins)> {
  let summary = "sum over ranks; every rank receives the sum";
  let description = [{
    `across` the unrolled axis, the operands of all coordinates are summed too:
    a tied weight, twin stages, the global norm.

    **Constraints**
    - one operand and result per coordinate; more than one needs `across`
    - on the reduced axes operands are partial and results replicated
    - nothing else in the types changes

    ```mlir
    %R = all_reduce %G at [0] over ["dp"] on @dp : !gP -> !gR
    %T0, %T1 = all_reduce %E0, %E1 at [0, 1] over ["dp"] across "pp" : !P, !P -> !R, !R
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead, CollectiveTail);
}

def Piper_AllGatherOp : Piper_Collective<"all_gather", (ins Piper_Index:$dim)> {
  let summary = "concatenate the shards of all ranks along a dim";
  let description = [{
    **Constraints**
    - on the gathered axes operands are sharded on `dim` and results replicated
    - the dim grows by the product of the axis sizes; the dtype and the other dims
      stay

    ```mlir
    %f = all_gather %s at [1] dim 0 over ["dp"] on @gather : !cS -> !cR
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead,
      "`dim` $dim ", CollectiveTail);
}

def Piper_ReduceScatterOp : Piper_Collective<"reduce_scatter", (ins Piper_Index:$dim)> {
  let summary = "sum over ranks; every rank receives its part along a dim";
  let description = [{
    **Constraints**
    - on the reduced axes operands are partial and results sharded on `dim`
    - the dim shrinks by the product of the axis sizes; the dtype and the other
      dims stay

    ```mlir
    %i = reduce_scatter %h at [1] dim 0 over ["dp"] on @reduce : !fP -> !vS
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead,
      "`dim` $dim ", CollectiveTail);
}

def Piper_AllToAllOp : Piper_Collective<"all_to_all",
    (ins Piper_Index:$dim, Optional<Piper_Sizes>:$send_sizes,
         Optional<Piper_Sizes>:$recv_sizes)> {
  let summary = "send part i of a dim to rank i";
  let description = [{
    Parts are equal, or have the sizes that the host knows from exchanged counts;
    the way back swaps the two sizes.

    **Constraints**
    - on the axes the values are varying
    - the dtype and the other dims stay
    - both sizes are given, or neither

    ```mlir
    %in = all_to_all %rows at [0] dim 0 sizes %s, %r over ["ep"] on @ep : !row -> !in
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead,
      "`dim` $dim (`sizes` $send_sizes^ `,` $recv_sizes)? ", CollectiveTail);
}

def Piper_PermuteOp : Piper_Collective<"permute", (ins I64Attr:$shift)> {
  let summary = "pass a value to the rank `shift` places further, in a ring";
  let description = [{
    **Constraints**
    - operand and result have the same type, varying or sharded on the axes

    ```mlir
    %1 = permute %0 at [0] shift 1 over ["cp"] on @cp : !kv -> !kv
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead,
      "`shift` $shift ", CollectiveTail);
}

def Piper_BroadcastOp : Piper_Collective<"broadcast", (ins Piper_Index:$root)> {
  let summary = "give every rank the value of one";
  let description = [{
    **Constraints**
    - on the axes the operand is varying and the result replicated

    ```mlir
    %1 = broadcast %0 at [0] root 0 over ["dp"] on @dp : !V -> !R
    ```
  }];
  let assemblyFormat = !strconcat(CollectiveHead,
      "`root` $root ", CollectiveTail);
}

def Piper_SliceOp : Piper_Op<"slice", [Piper_Ordered, Piper_SymbolUser]> {
  let summary = "keep a rank's own part of a replicated value";
  let description = [{
    **Constraints**
    - on the axis the operand is replicated and the result sharded on `dim`
    - the dim shrinks by the size of the axis; nothing else in the types changes

    ```mlir
    %1 = slice %0 dim 0 over "dp" at 0 : !R -> !S
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value, Piper_Index:$dim, StrAttr:$axis,
                       OptionalAttr<Piper_Index>:$at, Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $value `dim` $dim `over` $axis (`at` $at^)? (`after` $after^)? attr-dict
    `:` type($value) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_AxisIndexOp : Piper_Op<"axis_index", [Pure, Piper_SymbolUser]> {
  let summary = "give a rank's position along an axis";
  let description = [{
    **Constraints**
    - the axis is a manual or auto axis of the mesh

    ```mlir
    %i = axis_index "tp" at 0 : tensor<i64, #piper.layout<tp = varying>>
    ```
  }];
  let arguments = (ins StrAttr:$axis, OptionalAttr<Piper_Index>:$at);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$axis (`at` $at^)? attr-dict `:` type($result)";
}

def Piper_ConvertOp : Piper_Op<"convert", [Piper_Ordered]> {
  let summary = "change the dtype";
  let description = [{
    **Constraints**
    - shape and layout stay

    ```mlir
    %h = convert %g at 1 : tensor<272xbf16, #P> -> tensor<272xf32, #P>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $value (`at` $at^)? (`after` $after^)? attr-dict `:` type($value) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_SumOp : Piper_Op<"sum", [Piper_Ordered, AttrSizedOperandSegments,
    Piper_SymbolUser]> {
  let summary = "add contributions that arise at one coordinate";
  let description = [{
    With a bucket, the contributions are gradients; ordering expands the op to
    accumulations into the bucket, in issue order. The result may be wider than
    the contributions: each is converted before it is added.

    **Constraints**
    - at least one operand; all have the shape and layout of the result
    - the bucket exists, and the result has the type of its slot `grad`

    ```mlir
    %G = sum bucket @fc.weight$b %g_0, %g_1 at 0 : !g -> !g
    %n = sum %n_0, %n_1 at 1 : !n -> !n
    ```
  }];
  let arguments = (ins OptionalAttr<FlatSymbolRefAttr>:$bucket,
                       Variadic<AnyRankedTensor>:$inputs, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    (`bucket` $bucket^)? $inputs (`at` $at^)? (`after` $after^)? attr-dict
    `:` custom<UniformTypes>(ref($inputs), type($inputs)) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_AccumulateOp : Piper_Op<"accumulate", [Piper_Ordered, AttrSizedOperandSegments,
    Piper_SymbolUser]> {
  let summary = "add a contribution to a bucket's gradient, in place";
  let description = [{
    Without `onto` the sum starts from zero. Consumes the sum so far.

    **Constraints**
    - the contribution has the shape and layout of the result
    - the result has the type of the sum so far, and of the bucket's slot `grad`

    ```mlir
    %1 = accumulate @fc.weight$b %g_1 onto %0 at 0 : !g -> !G
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, AnyRankedTensor:$value,
                       Optional<AnyRankedTensor>:$onto, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $bucket $value (`onto` $onto^)? (`at` $at^)? (`after` $after^)? attr-dict
    `:` type($value) `->` custom<OntoType>(ref($onto), type($onto), type($result))
  }];
  let hasVerifier = 1;
}

def Piper_SumsqOp : Piper_Op<"sumsq", [Piper_Ordered, AttrSizedOperandSegments]> {
  let summary = "sum the squares of gradients";
  let description = [{
    Of whole gradients the result is whole, of shards it is a partial sum. With no
    operand it is zero: a coordinate that counts nothing still takes part in the
    global norm.

    **Constraints**
    - no operand is partial; the result is a scalar
    - on every axis either all operands are replicated, or none is: else what is
      whole would be counted by every rank
    - on every axis the result is partial if the operands are not replicated, and
      only then; a zero may be partial

    ```mlir
    %s = sumsq %R0, %T0 at 0 : (!pR, !eR) -> !sR
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$inputs, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    ($inputs^)? (`at` $at^)? (`after` $after^)? attr-dict `:` functional-type($inputs, $result)
  }];
  let hasVerifier = 1;
}

def Piper_NonfiniteOp : Piper_Op<"nonfinite", [Piper_Ordered]> {
  let summary = "say whether a scalar is infinite or not a number";
  let description = [{
    Of the norm of all gradients, which is the same on every rank, it is what all
    ranks agree on: whether the step is to be skipped.

    **Constraints**
    - the operand is a scalar that is the same on all ranks, and so is the result

    ```mlir
    %k = nonfinite %s at 0 : tensor<f32, #R> -> tensor<i1, #R>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$value, OptionalAttr<Piper_Index>:$at,
                       Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $value (`at` $at^)? (`after` $after^)? attr-dict `:` type($value) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_UpdateOp : Piper_Op<"update",
    [MemoryEffects<[MemWrite<Piper_ReadsState>]>, AttrSizedOperandSegments,
     Piper_SymbolUser]> {
  let summary = "step the optimizer on this rank's part of a bucket";
  let description = [{
    `norm` is the sum of squares of all gradients, needed when `clip` bounds
    their norm. `skip` is a scalar that, when not zero, leaves the state as it is:
    the host waits for it. The result is the new value.

    **Constraints**
    - the gradient is not partial: a missing reduction is a type error
    - `clip` needs `norm`
    - `skip` says whether the norm of all gradients is not finite (`piper-verify`)
    - the bucket exists; the gradient has the shape and layout of its slot `value`
      and the dtype of its slot `grad`; the result has the type of `value`

    ```mlir
    %v = update @fc.weight$b %R norm %c : !sR at 0 optimizer "train:make_adamw" clip 1.0 : !pR -> !pR
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$bucket, AnyRankedTensor:$grad,
                       Optional<AnyRankedTensor>:$norm, Optional<AnyRankedTensor>:$skip,
                       OptionalAttr<Piper_Index>:$at, StrAttr:$optimizer,
                       OptionalAttr<F64Attr>:$clip, Variadic<Piper_Event>:$after);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = [{
    $bucket $grad (`norm` $norm^ `:` type($norm))? (`skip` $skip^ `:` type($skip))?
    (`at` $at^)? `optimizer` $optimizer (`clip` $clip^)? (`after` $after^)? attr-dict
    `:` type($grad) `->` type($result)
  }];
  let hasVerifier = 1;
}

def Piper_HostWaitOp : Piper_Op<"host_wait", [Piper_Ordered, AttrSizedOperandSegments]> {
  let summary = "block the host until device integers are known";
  let description = [{
    The only op that blocks the host. One result per operand.

    ```mlir
    %hs, %hr = host_wait %sc, %rc : !cnt, !cnt -> !piper.sizes, !piper.sizes
    ```
  }];
  let arguments = (ins Variadic<AnyRankedTensor>:$counts, OptionalAttr<Piper_Index>:$mb,
                       OptionalAttr<Piper_Index>:$at, Variadic<Piper_Event>:$after);
  let results = (outs Variadic<Piper_Sizes>:$results);
  let assemblyFormat = [{
    $counts (`mb` $mb^)? (`at` $at^)? (`after` $after^)? attr-dict
    `:` type($counts) `->` type($results)
  }];
  let hasVerifier = 1;
}

#endif // PIPER_CLUSTER_OPS_TD
