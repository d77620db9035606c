//===- StrategyOps.td - Directives and schedules as data --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_STRATEGY_OPS_TD
#define PIPER_STRATEGY_OPS_TD

include "dialect/SymbolOps.td"

def Piper_StrategyOp : Piper_Op<"strategy",
    [Symbol, IsolatedFromAbove, SingleBlock, NoTerminator, NoRegionArguments,
     DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "list the directives that turn one rank's step into a cluster's";
  let description = [{
    A strategy is data. A pass per directive records it as facts on the small L2
    module; two directives that set the same fact differently are an error, and
    otherwise their order does not matter.

    **Constraints**
    - the body holds directives only
    - the mesh exists

    ```mlir
    piper.strategy @strategy mesh = @mesh {
      piper.do.place <all> stages = 2 axis = "pp"
      piper.do.split microbatches = 4 dims = {ids = 0}
      piper.do.order @order
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefAttr:$mesh);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `mesh` `=` $mesh $body attr-dict";
  let hasRegionVerifier = 1;
}

class Piper_DirectiveOp<string directive, list<Trait> traits = []>
    : Piper_Op<"do." # directive, traits # [HasParent<"StrategyOp">]>;

def Piper_DoAnnotateOp : Piper_DirectiveOp<"annotate"> {
  let summary = "name chunks by the paths of the modules that make them";
  let description = [{
    Shapes the capture: an op takes the tag of the outermost module whose path
    matches a pattern. In the compiler it is checked: every tag names a chunk.
    The path of the model itself is written `"."`.

    ```mlir
    piper.do.annotate {embed = "embed", "layers.*" = "layer"}
    ```
  }];
  let arguments = (ins DictionaryAttr:$tags);
  let assemblyFormat = "$tags attr-dict";
}

def Piper_DoSplitOp : Piper_DirectiveOp<"split"> {
  let summary = "cut the batch of every rank into microbatches";
  let description = [{
    `dims` gives the batch dim of the inputs that are split; an input that it
    does not name is replicated.

    ```mlir
    piper.do.split microbatches = 4 dims = {ids = 0, labels = 0}
    ```
  }];
  let arguments = (ins Piper_Index:$microbatches, DictionaryAttr:$dims);
  let assemblyFormat =
      "`microbatches` `=` $microbatches `dims` `=` $dims attr-dict";
  let hasVerifier = 1;
}

def Piper_DoPlaceOp : Piper_DirectiveOp<"place"> {
  let summary = "cut chunks into stages and put each stage on a coordinate";
  let description = [{
    `stages` alone cuts by captured FLOPs; `sizes` states the number of chunks of
    each stage. `coordinates` gives the coordinate of each stage (default: stage
    i on coordinate i). `homes` gives it per microbatch, for strategies such as
    DualPipe in which a stage lives at two places.

    ```mlir
    piper.do.place <all> stages = 4 axis = "pp" coordinates [0, 1, 1, 0]
    piper.do.place <all> stages = 2 axis = "pp" homes [[0, 1], [1, 0]]
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, Piper_Index:$stages, StrAttr:$axis,
                       OptionalAttr<DenseI64ArrayAttr>:$sizes,
                       OptionalAttr<DenseI64ArrayAttr>:$coordinates,
                       OptionalAttr<TypedArrayAttrBase<DenseI64ArrayAttr, "rows">>:$homes);
  let assemblyFormat = [{
    $select `stages` `=` $stages `axis` `=` $axis (`sizes` $sizes^)?
    (`coordinates` $coordinates^)? (`homes` custom<Rows>($homes)^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Piper_DoReplicateOp : Piper_DirectiveOp<"replicate"> {
  let summary = "train copies of states on the ranks of data axes";
  let description = [{
    Every rank along `axes` sees its part of the batch; gradients are summed.
    `bucket` is the size in bytes of a bucket, `reduce = "last"` sums once,
    after the last contribution, `"each"` sums every contribution; `dtype` is
    that of the accumulated gradients.

    `zero` is the ZeRO stage: from 1 on, ranks share out what the optimizer keeps,
    from 2 on, with `reduce = "each"`, the gradients too, from 3 on the states,
    frozen ones among them.
    `shard` are the axes along which they do (absent: all of them; fewer is
    HSDP). `gather` says how long the states of stage 3 are kept whole: for
    `"each"` use, for a `"group"` of uses in a row, or for the `"step"`, which
    stages 1 and 2 may do, too, instead of gathering what is updated;
    `prefetch` is how many runs before their use they are gathered, `limit` how
    many bytes of them may be whole for that.

    ```mlir
    piper.do.replicate <all> axes = ["dp"] zero = 0 bucket = 25000000 reduce = "last" dtype = f32
    piper.do.replicate <all> axes = ["rep", "dp"] zero = 3 bucket = 25000000 reduce = "each" shard = ["dp"] gather = "group" prefetch = 1 limit = 64000000
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, StrArrayAttr:$axes, Piper_Index:$zero,
                       Piper_Index:$bucket, StrAttr:$reduce,
                       OptionalAttr<TypeAttr>:$dtype,
                       OptionalAttr<StrArrayAttr>:$shard, OptionalAttr<StrAttr>:$gather,
                       OptionalAttr<Piper_Index>:$prefetch,
                       OptionalAttr<Piper_Index>:$limit);
  let assemblyFormat = [{
    $select `axes` `=` $axes `zero` `=` $zero `bucket` `=` $bucket `reduce` `=` $reduce
    (`dtype` `=` $dtype^)? (`shard` `=` $shard^)? (`gather` `=` $gather^)?
    (`prefetch` `=` $prefetch^)? (`limit` `=` $limit^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Piper_DoShardOp : Piper_DirectiveOp<"shard"> {
  let summary = "let ranks along an axis hold parts of states";
  let description = [{
    Every rank along `axis` holds an equal part of dim `dim` of the states: of
    experts, its own. What an op makes of a part is a part; rows that belong to
    the experts of other ranks are exchanged. A rank may receive the rows of all
    ranks, or, with `capacity`, that many times the rows that it sends; more are an
    error of the run.

    **Constraints**
    - the axis is a manual axis of the mesh, whose size divides the dim, or an auto
      one, along which the last parts may have padding
    - the capacity is positive

    ```mlir
    piper.do.shard <state = "*.experts.*"> axis = "ep" dim = 0 capacity = 1.25
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, StrAttr:$axis, Piper_Index:$dim,
                       OptionalAttr<F64Attr>:$capacity);
  let assemblyFormat = [{
    $select `axis` `=` $axis `dim` `=` $dim (`capacity` `=` $capacity^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Piper_DoSequenceOp : Piper_DirectiveOp<"sequence"> {
  let summary = "let ranks along an axis hold parts of the sequence";
  let description = [{
    `dims` gives the sequence dim of batch inputs. Along an auto axis, where ranks
    compute parts of products, what these leave as unfinished sums is summed to
    parts of the sequence, and everything between products is computed on those:
    sequence parallelism. Along a manual axis ranks get parts of the inputs, and
    attention gathers keys and values: context parallelism.

    **Constraints**
    - the axis is a manual or auto axis of the mesh
    - the inputs exist and have the dim, which the ranks of the axis divide

    ```mlir
    piper.do.sequence axis = "tp" dims = {ids = 1, labels = 1}
    ```
  }];
  let arguments = (ins StrAttr:$axis, DictionaryAttr:$dims);
  let assemblyFormat = "`axis` `=` $axis `dims` `=` $dims attr-dict";
}

def Piper_DoRematOp : Piper_DirectiveOp<"remat"> {
  let summary = "compute values of the forward pass again instead of keeping them";
  let description = [{
    `policy` is one of
    - `"min_cut"`: what is kept for the backward pass is as small as it can be
      without computing a heavy op again (the default without a directive);
    - `"full"`: only what comes from other chunks is kept;
    - `"save"`: nothing is computed again.

    `ops` restricts what may be computed again to ops whose names match one of
    the globs. Ops that the model itself marks (`torch.utils.checkpoint`) are
    computed again under every policy.

    ```mlir
    piper.do.remat <tag = "layer"> policy = "full"
    piper.do.remat <all> policy = "min_cut" ops ["aten.gelu.*"]
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, StrAttr:$policy,
                       OptionalAttr<StrArrayAttr>:$ops);
  let assemblyFormat = "$select `policy` `=` $policy (`ops` $ops^)? attr-dict";
  let hasVerifier = 1;
}

def Piper_DoOrderOp : Piper_DirectiveOp<"order"> {
  let summary = "run the cells of a schedule in the order of its rows";
  let description = [{
    ```mlir
    piper.do.order @order
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$schedule);
  let assemblyFormat = "$schedule attr-dict";
}

def Piper_DoOverlapOp : Piper_DirectiveOp<"overlap"> {
  let summary = "interleave the pieces of two chunks that may overlap";
  let description = [{
    Where a schedule lets a forward and a backward cell overlap, the selected
    chunks of the forward cell are paired with those of the backward cell, last
    first, and their pieces are issued in the order of the template. It names each
    piece of both once: `F`, `F1` and so on for what computes, `F.dispatch` and so
    on for what ranks exchange behind it. A name that several pieces have stands as
    often, the first time for the first of them. What is issued on one stream runs
    in that order, so the template says the order on every stream.

    Where the backward cell of a pair is `I`, pieces are named `I`, `I1` and so on.
    If its `W` is the next cell of the row, a template may also name pieces `W`, `W1`
    and so on, anywhere behind what they use; otherwise they stay behind the pair.

    ```mlir
    piper.do.overlap <tag = "moe"> order = ["B", "B.dispatch", "F", "F.counts", "F1", "F.dispatch", "B1", "B.collect", "F2", "F.collect", "B2", "F3"]
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, StrArrayAttr:$order);
  let assemblyFormat = "$select `order` `=` $order attr-dict";
}

def Piper_DoUpdateOp : Piper_DirectiveOp<"update"> {
  let summary = "step an optimizer once per training step";
  let description = [{
    `optimizer` is the import path of a function from parameters to a
    `torch.optim.Optimizer`; `clip` bounds the global gradient norm. With `master`
    the optimizer updates values of that dtype, and the model computes with
    copies of its own dtype. With `skip_nonfinite` a step whose gradient norm is
    not finite changes nothing. `loss_scale` is what the runtime multiplies losses
    by before the backward pass, and divides gradients by before the optimizer:
    one number, which stays, or the first one and how it changes, which is growth,
    backoff and the number of steps between growths.

    **Constraints**
    - the master dtype is floating-point, `clip` and `loss_scale` are positive
    - a changing loss scale grows by more than 1, backs off by less, after at least
      one step, and needs `skip_nonfinite`

    ```mlir
    piper.do.update <all> optimizer = "train:make_adamw" clip = 1.0 master = f32 skip_nonfinite loss_scale = [65536.0, 2.0, 0.5, 2000.0]
    ```
  }];
  let arguments = (ins Piper_SelectAttr:$select, StrAttr:$optimizer,
                       OptionalAttr<F64Attr>:$clip, OptionalAttr<TypeAttr>:$master,
                       UnitAttr:$skip_nonfinite,
                       OptionalAttr<TypedArrayAttrBase<F64Attr, "numbers">>:$loss_scale);
  let assemblyFormat = [{
    $select `optimizer` `=` $optimizer (`clip` `=` $clip^)? (`master` `=` $master^)?
    (`skip_nonfinite` $skip_nonfinite^)? (`loss_scale` `=` $loss_scale^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Piper_DoStreamOp : Piper_DirectiveOp<"stream"> {
  let summary = "say how urgent a stream is, and how much of a device it may hold";
  let description = [{
    `priority` and `sms` become those of the `piper.stream` of this name. Streams
    bear the names of mesh axes: transfers run on that of the unrolled axis,
    reductions on that of the first axis that they reduce over, gathers of sharded
    states on that of the first axis they gather over, followed by `.gather`.

    **Constraints**
    - priority, sms or both are given
    - a communicator is for the stream once programs exist (`piper-lower-programs`)

    ```mlir
    piper.do.stream @dp priority = 1 sms = 8
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$stream, OptionalAttr<I64Attr>:$priority,
                       OptionalAttr<Piper_Index>:$sms);
  let assemblyFormat = [{
    $stream (`priority` `=` $priority^)? (`sms` `=` $sms^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Piper_DoUserPassOp : Piper_DirectiveOp<"user_pass"> {
  let summary = "run a pass of the user's own at a point of the sequence of passes";
  let description = [{
    `function` is the import path of a Python function, which is called with the
    module and the options and rewrites the module. `python -m piper.opt` and
    `piper.compile` call it where `piper-user-passes` of its point stands, and mark
    the directive `done`; several at one point are called in the order written.
    C++ drivers refuse it there.

    | point | the module then has |
    |---|---|
    | `"step"` | captured steps, op by op |
    | `"chunks"` | outlined steps, chunks and kernels |
    | `"facts"` | the same, with what directives recorded |
    | `"cluster"` | the ordered cluster |

    **Constraints**
    - the function is `package.module:function`
    - the point is one of these
    - options are strings, 64-bit integers, f64 floats and booleans

    ```mlir
    piper.do.user_pass "own_pass:centralize" at "step" options {states = "layers.*"}
    ```
  }];
  let arguments = (ins StrAttr:$function, StrAttr:$at,
                       OptionalAttr<DictionaryAttr>:$options, UnitAttr:$done);
  let assemblyFormat = [{
    $function `at` $at (`options` $options^)? (`done` $done^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The points, in the order in which the compiler comes to them.
    static llvm::ArrayRef<llvm::StringRef> getPoints();
  }];
}

def Piper_ScheduleOp : Piper_Op<"schedule", [Symbol]> {
  let summary = "give the order of cells on each coordinate, as a table";
  let description = [{
    One row per coordinate; a cell is stage, pass and microbatch in PyTorch's
    notation, such as `2F0`. `(1F3;0B0)OVERLAP_F_B` is a pair that may overlap.

    **Constraints**
    - every cell is well-formed, and its stage and microbatch are in range
    - a pair holds two cells
    - no cell appears twice

    ```mlir
    piper.schedule @order axis = "pp" stages = 2 microbatches = 2
        ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrAttr:$axis, Piper_Index:$stages,
                       Piper_Index:$microbatches, StrArrayAttr:$rows);
  let assemblyFormat = [{
    $sym_name `axis` `=` $axis `stages` `=` $stages `microbatches` `=` $microbatches
    $rows attr-dict
  }];
  let hasVerifier = 1;
}

#endif // PIPER_STRATEGY_OPS_TD
