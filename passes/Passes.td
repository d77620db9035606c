//===- Passes.td - The passes, in the order in which they run ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_PASSES_PASSES
#define PIPER_PASSES_PASSES

include "mlir/Pass/PassBase.td"

class Piper_Pass<string flag> : Pass<flag, "::mlir::ModuleOp"> {
  let dependentDialects = ["::piper::PiperDialect"];
}

//===----------------------------------------------------------------------===//
// L1 to L2
//===----------------------------------------------------------------------===//

def RematPass : Piper_Pass<"piper-remat"> {
  let summary = "Compute values again in pass B instead of keeping them";
  let description = [{
    *Before*: a captured step. *After*: ops of pass F whose results are not kept
    stand again in pass B of their chunk, each right before its first use, and pass
    B uses those. No op is marked `recompute` any more: the marks had their effect.

    The policy of each chunk is what a `do.remat` directive says, and `min_cut`
    where none does:

    | policy | computed again are |
    |---|---|
    | `min_cut` | ops that are not heavy, so that the fewest bytes are kept |
    | `full` | all ops |
    | `save` | none |
    | all | ops that the model marks (`torch.utils.checkpoint`) |

    Only pure ops are computed again, so that min_cut leaves results equal to the last bit:
    what random and mutating ops make is kept under every policy. States, inputs,
    preambles and tangents cost nothing; a value of another chunk costs its bytes,
    as it must stay until pass B. An op that is not marked but uses what a marked
    op makes is kept, as torch keeps what leaves a checkpoint.

    *Fails* if a directive selects no chunk that has a backward pass, if one of its
    `ops` matches nothing, and if two directives disagree about a chunk.

    ```mlir
    %h = torch "aten.mm.default"(%x, %w) facts <pure, flops = 4096, heavy> tag <"layer.0" F> : (!x, !w) -> !h
    %y = torch "aten.gelu.default"(%h) facts <pure, flops = 64> tag <"layer.0" F> : (!h) -> !h
    // before: both are kept
    %d = torch "aten.gelu_backward.default"(%dy, %h) facts <pure, flops = 64> tag <"layer.0" B> : (!h, !h) -> !h
    %g = torch "aten.mm.default"(%dz, %y) facts <pure, flops = 4096, heavy> tag <"layer.0" B> : (!z, !h) -> !w
    // after: only %h is kept
    %d = torch "aten.gelu_backward.default"(%dy, %h) facts <pure, flops = 64> tag <"layer.0" B> : (!h, !h) -> !h
    %y2 = torch "aten.gelu.default"(%h) facts <pure, flops = 64> tag <"layer.0" B> : (!h) -> !h
    %g = torch "aten.mm.default"(%dz, %y2) facts <pure, flops = 4096, heavy> tag <"layer.0" B> : (!z, !h) -> !w
    ```
  }];
}

def ShardPass : Piper_Pass<"piper-shard"> {
  let summary = "Record on states which part of them ranks hold";
  let description = [{
    *After*: the states that directives select have a `layout`. *Fails* for an unrolled
    axis, and for a dim that does not exist or that the ranks of a manual axis do not
    divide. Along an auto axis the last parts have zeros behind the end of the whole.
  }];
}

def PartitionPass : Piper_Pass<"piper-partition"> {
  let summary = "Let a captured step compute with the parts that a rank holds";
  let description = [{
    *Before*: a captured step, whose values are those of one rank that holds all states
    whole. *After*: reads of sharded states give the rank's part, and what is made of
    parts has the sizes of parts. The rules of ops say which dims belong together. What
    ranks exchange has a tag, as ops have.

    - Along a *manual* axis states are shared out that ops use in groups: experts. Where
      rows are handed to experts and taken back (`piper.moe_dispatch`,
      `piper.moe_collect`) ranks exchange them: counts first, then, when the host knows
      them, rows. How many rows arrive is known at run time, and the type says how many
      can: those of all ranks, or what `capacity` allows.
    - Along an *auto* axis each value is whole, a part of one dim, or a term of a sum.
      Terms are summed and parts are gathered where an op needs it, unless its rule names
      another op that takes parts, such as that of a softmax; with a `sequence`
      directive sums are left as parts of the sequence. Where ranks do not divide a dim
      the last parts have padding, which is zero in states, and cleared before sums.
    - With a `sequence` directive along a *manual* axis ranks have parts of the inputs;
      attention gathers keys and values, of the heads that a rank has, and rows of experts
      are those of the rank's positions.

    What ranks exchange belongs to a chunk, also where it depends on inputs alone, as where
    the batch says which experts are chosen: it leaves pass P for the first chunk that uses
    it, with what is made of it and what only exchanges use; of what else they take the
    chunk makes a copy.

    *Fails* if an op that is touched has no rule, or sees more of a dim than a rank has of
    it: see the rules of each in the files `Partition*.cpp`.
  }];
}

def OutlineChunksPass : Piper_Pass<"piper-outline-chunks"> {
  let summary = "Turn a captured step into runs of chunks that launch kernels";
  let description = [{
    *Before*: a step of phase `captured`, every op tagged. *After*: the step is of
    phase `outlined`; each (chunk, pass) is a `piper.chunk` that launches one
    kernel; equal kernels are one. Where ranks exchange values within a chunk it is
    cut: `layer.0$F`, `layer.0$F1` and so on, with the exchange between their runs. Where
    the host waits for counts of rows, what these do not need is a piece of its own, which
    comes between the exchange of counts and the wait. Where ranks have parts of values,
    ops of kernels keep their rules, which say what ranks hold of results. Views are
    rebuilt where they are used, so that a chunk passes on what owns memory. Ops of pass P
    become one chunk per connected piece. A backward chunk is `of` its forward chunk, and
    `dual` says what in the two belongs together, as `primals` and `cotangents` on the ops
    say; of chunks that are cut, the first backward piece is of the last forward piece, and
    so on, past those that are there only because the host waits, and only what these two
    take and return is paired. *Fails* if chunks wait for each other in a cycle, for an op
    without a tag, and for an exchange that belongs to no chunk or takes what none makes.
  }];
}

//===----------------------------------------------------------------------===//
// Users' own passes
//===----------------------------------------------------------------------===//

def UserPassesPass : Piper_Pass<"piper-user-passes"> {
  let summary = "Mark a point at which users' own passes run";
  let description = [{
    Changes nothing. *After*: every `do.user_pass` directive of the point `at`, and of those
    before it, is `done`. Drivers with Python (`python -m piper.opt` and
    `piper.compile`) run them when they come here; *fails* for those that are not
    done, as in drivers without Python.

    The points `chunks`, `facts` and `cluster` begin `piper-record`,
    `piper-materialize` and `piper-lower`. The point `step` is before `piper-remat`.
  }];
  let options = [Option<"at", "at", "std::string", /*default=*/"\"step\"",
                        "The point: step, chunks, facts or cluster.">];
}

//===----------------------------------------------------------------------===//
// Directives: record
//===----------------------------------------------------------------------===//

def AnnotatePass : Piper_Pass<"piper-annotate"> {
  let summary = "Check that every tag of an annotate directive names a chunk";
  let description = [{
    Annotations act at capture. *Fails* for a tag without a chunk: a directive
    without effect is a mistake.
  }];
}

def SplitPass : Piper_Pass<"piper-split"> {
  let summary = "Record the number of microbatches on the step";
  let description = [{
    *After*: `microbatches` is set on every step, 1 without a directive. *Fails* if
    the directive disagrees with the captured inputs or shapes.
  }];
}

def PlacePass : Piper_Pass<"piper-place"> {
  let summary = "Record the stage of chunks and the homes of stages";
  let description = [{
    Chunks are cut into stages in the order of the step, by FLOPs (the heaviest
    stage is as light as can be) or by the sizes given. *After*: chunks have a
    `stage`, steps have `homes`. *Fails* if there are fewer chunks than stages, or
    sizes do not add up: no chunk is lost.
  }];
}

def ReplicatePass : Piper_Pass<"piper-replicate"> {
  let summary = "Record the data axes on the step and on states";
  let description = [{
    *Fails* for an unknown axis, for an axis that no directive uses, and for ZeRO
    stages and policies that are not implemented.
  }];
}

def UpdatePass : Piper_Pass<"piper-update"> {
  let summary = "Record the optimizer, clipping and skipping on states";
  let description = [{
    *Fails* if the selector selects no trainable state.
  }];
}

def OrderPass : Piper_Pass<"piper-order"> {
  let summary = "Record the schedule on the step";
  let description = [{
    *Fails* if the schedule is about another number of microbatches, stages or
    coordinates, and if there are several coordinates and no schedule.
  }];
}

def StreamPass : Piper_Pass<"piper-stream"> {
  let summary = "Record the priority and SMs of streams";
  let description = [{
    *After*: the streams that directives name are declared, with what these say.
    *Fails* if two directives disagree, or name another symbol. Whether anything runs on a stream is known
    once programs exist: `piper-lower-programs` refuses a directive for one that has
    no communicator.
  }];
}

//===----------------------------------------------------------------------===//
// L2 to L3: materialize
//===----------------------------------------------------------------------===//

def AssignKindsPass : Piper_Pass<"piper-assign-kinds"> {
  let summary = "Say what ranks along manual and auto axes hold of each value";
  let description = [{
    *Before*: types without layouts. *After*: inputs vary along the data axes,
    states are replicated, launches mix; losses and counts are relabelled partial. A
    backward chunk relabels the gradients that it returns to the duals of what they
    are gradients of, and terms that it takes to varying. A value that is the gradient
    of values of different kinds is the `dual` of none, and a tangent of no varying
    value.

    Along an *auto* axis nothing is relabelled. Inputs are replicated, states are what
    directives say, and what kernels make of that follows from the rules of their ops:

    | operands | results |
    |---|---|
    | replicated, all of them | replicated |
    | shards of one factor, all that have it | a shard of it, or partial if they are sums over it |
    | partial, all of them, of a linear op | partial |
    | anything else | varying: nobody knows |

    *Fails* if an exchange, a gradient or a report gets another kind than it needs, or a
    value of which nobody knows what ranks hold leaves a chunk: the op that is behind it
    is named. Along a manual axis whose ranks have parts of the sequence the same is
    followed and checked, from parts of the inputs on; types say varying there.
  }];
}

def FormBucketsPass : Piper_Pass<"piper-form-buckets"> {
  let summary = "Group states, and pass them to chunks as flat operands";
  let description = [{
    *Before*: chunks read states and contribute gradients by name. *After*: they
    take buckets as operands and return packed contributions; the step, of phase
    `bucketed`, sums these. States share a bucket if the same chunks use them and
    dtype and facts agree, up to the size of a bucket. What ranks share out of a
    bucket, the types of its slots say; states of which ranks hold shards are
    gathered for each run, contributions are reduced where each of them is. In `dual`
    a contribution is the gradient of the forward chunk's bucket.
  }];
}

def SplitBackwardPass : Piper_Pass<"piper-split-backward"> {
  let summary = "Cut backward chunks in input and weight gradients";
  let description = [{
    *Before*: backward chunks of pass B. *After*: those whose stage has cells of
    pass I or W in the schedule have halves: a chunk of pass I with what the next
    chunk waits for, and one of pass W with the gradients of states. Their kernels
    are slices of the whole kernel; views are rebuilt in both, an op with a `mask`
    is called once in each. What is a `dual` in the whole is one in its half. *Fails* if another op makes gradients of inputs and of
    states in one call.

    Launches of B are cut alike, so that B, I and W share kernels.
  }];
}

def UnrollMicrobatchesPass : Piper_Pass<"piper-unroll-microbatches"> {
  let summary = "Run every chunk for every microbatch at its home";
  let description = [{
    *After*: a cluster of phase `unrolled` beside the step. Values are used where
    they are needed, also at other coordinates.
  }];
}

def InsertTransfersPass : Piper_Pass<"piper-insert-transfers"> {
  let summary = "Move values to the coordinates that use them";
  let description = [{
    *After*: phase `connected`: an op's operands arise at its own coordinate. There
    is one transfer per value and destination. *Fails* for values of which only the
    run knows the size, as rows of experts: who receives has made room before.
  }];
}

def InsertReductionsPass : Piper_Pass<"piper-insert-reductions"> {
  let summary = "Finish partial sums, and update states";
  let description = [{
    *After*: phase `reduced`. Counts, losses and gradients are summed over the
    manual axes and, where several coordinates hold a state, across these in the
    same call. Ranks that update shards get their parts of sums; slots that are
    derived from updated values are written. Clipping adds the global norm, and so
    does skipping, by which all ranks agree on whether it is finite.
    *Fails* if a coordinate holds a trained state but makes no gradient of it.
  }];
}

def OrderCellsPass : Piper_Pass<"piper-order-cells"> {
  let summary = "Put the cluster in issue order";
  let description = [{
    *After*: phase `ordered`: each coordinate runs the cells of its row; sums of
    gradients are accumulations. The pieces of two cells that may overlap, and of the
    weight gradients right behind them, take turns, or are issued as a `do.overlap`
    says. States are gathered some cells early, once for cells in a row if they share
    it. An evaluation runs the forward cells. *Fails* if
    cells and runs do not match, or rows wait for each other: a shortest cycle is
    shown, each cell with the value that it waits for and where that would be made.
  }];
}

//===----------------------------------------------------------------------===//
// L3 to L4, and checks
//===----------------------------------------------------------------------===//

def LowerProgramsPass : Piper_Pass<"piper-lower-programs"> {
  let summary = "Project the ordered cluster to one program per coordinate";
  let description = [{
    *After*: programs with sends, receives, events and frees, and the
    communicators they use. The cluster stays, of phase `lowered`. *Fails* if a
    `do.stream` directive is about a stream that no communicator is for.
  }];
}

def VerifyPass : Piper_Pass<"piper-verify"> {
  let summary = "Check what must hold in the phase that the module is in";
  let description = [{
    Changes nothing. Each check is linear in the size of the module. Of an outlined
    step: along auto axes, and along manual ones that share out the sequence, exchanges,
    gradients and reports get the kinds that they need, by the rules of the ops of
    kernels (`piper-assign-kinds`). From then on, whatever the phase, of every chunk:
    along auto axes types say what its kernels make. Of every outlined step whose ranks
    exchange rows: these have the sizes of counts, and of what an `all_to_all` over the same
    axes makes of them, on the way back swapped; experts take the counts that came with
    their rows, grouped; rows have the order of the sort that counted them; what experts
    multiply goes back behind that; and in backward passes gradients stand where ops want
    them, and rows elsewhere. Of clusters:

    | from phase | holds |
    |---|---|
    | unrolled | every chunk of the step but preambles runs once per microbatch, at its home |
    | unrolled | a run takes what the step gives to the run of its chunk, for its microbatch |
    | unrolled | every contribution to a gradient is summed once, into its own bucket |
    | unrolled | a value is converted once, however it is sliced, reduced or gathered before and behind |
    | connected | operands arise at the coordinate that uses them |
    | reduced | every optimized state is updated once per holder, with its own gradient; all holders take one sum, summed across coordinates once; no other state is updated |
    | reduced | counts, losses and the norm are sums of every microbatch, or every gradient, once; every loss and the norm are reported; what is skipped is skipped by that norm |
    | reduced | a slot derived from a value is written behind every update, from what that update returned |
    | ordered | F comes before B or I, and I before W; accumulations continue each other |
    | ordered | what was read or gathered from a derived slot is not used behind an update |

    Of every program: an instruction waits for what other streams made or still
    read; what is freed or overwritten is not used again; a buffer is taken behind
    the last free; derived slots are as in clusters. Of the programs of one cluster:
    there is one per coordinate; both ends of a communicator issue the same messages
    and collectives in one order, each of the same value; no instructions wait for
    each other in a cycle, which would be a deadlock: the cycle is shown, link by
    link; what the cluster has at a coordinate occurs in its program once, in the
    cluster's order along compute and each communicator, on the same values; and
    what the programs of a lowered cluster make is freed.

    No collective is conditional: programs have no control flow, and no op that holds
    others may hold one.

    With `single-queue`, no instructions wait for each other in a cycle even where all
    messages and collectives of a coordinate go through one queue, in the order in
    which they are issued; and of communicators that join the same coordinates, all of
    these issue in one order.

    With `max-memory`, the bytes of all storages of a program that are alive at
    once are bounded: slots of the buckets that its coordinate holds (gradients if
    the program writes them), the batch of a step, and what instructions make, from
    where they are issued to their `free`. A value that is made in place has no
    storage of its own. A dynamic dim counts as the `bound` of its layout; the error
    lists the largest storages. Not counted are the state of optimizers, whose
    bytes the IR does not say, what an instruction needs inside (tensors between
    the ops of a kernel, workspaces, copies inside collectives and updates), and what
    an allocator loses.

    With `max-sms`, the SMs that communication of a program holds at once are bounded.
    A message or collective holds the `sms` of its stream until it is done; one that
    is issued early spins until its other members come; and a communicator is a queue
    beside the others. So they are the sum over all communicators that it uses.
  }];
  let options = [
    Option<"singleQueue", "single-queue", "bool", /*default=*/"false",
           "Also check that programs finish where all communication of a rank "
           "shares one queue; communicators that join the same coordinates are "
           "then issued in one order on all of them.">,
    Option<"maxCommunicators", "max-communicators", "unsigned", /*default=*/"0",
           "The most communicators that a coordinate may be a member of; 0 means "
           "any number.">,
    Option<"maxMemory", "max-memory", "uint64_t", /*default=*/"0",
           "The most bytes that storages of a program may take at once; 0 means any "
           "number. Optimizer state and what instructions need inside are not "
           "counted.">,
    Option<"maxSms", "max-sms", "uint64_t", /*default=*/"0",
           "The most SMs that communication of a program may hold at once; 0 means "
           "any number. Streams must say their sms.">
  ];
}

#endif // PIPER_PASSES_PASSES
