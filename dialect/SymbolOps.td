//===- SymbolOps.td - What a module names -----------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_SYMBOL_OPS_TD
#define PIPER_SYMBOL_OPS_TD

include "dialect/Attributes.td"
include "dialect/Types.td"
include "dialect/Interfaces.td"

def Piper_Index : ConfinedAttr<I64Attr, [IntNonNegative]>;

def Piper_MeshOp : Piper_Op<"mesh", [Symbol]> {
  let summary = "name the axes of the cluster, outermost first";
  let description = [{
    Ranks are numbered row-major over the axes. A view names a product of axes:
    what a user calls `dp` may be split into `edp` and `ep`; types are spelled
    in the finest axes, so that equal layouts are equal types.

    **Constraints**
    - axis names are distinct, and so are the names of views
    - every size is at least 1
    - at most one axis is unrolled
    - a view's factors are axes of the mesh

    ```mlir
    piper.mesh @mesh [pp = 2 unrolled, edp = 2 manual, ep = 2 manual] views {dp = ["edp", "ep"]}
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name,
                       TypedArrayAttrBase<Piper_AxisAttr, "axes">:$axes,
                       OptionalAttr<DictionaryAttr>:$views);
  let assemblyFormat =
      "$sym_name custom<Axes>($axes) (`views` $views^)? attr-dict";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::llvm::SmallVector<AxisAttr> getAxesWithRole(AxisRole role);
    /// The axis of this name, or null.
    AxisAttr lookupAxis(::llvm::StringRef name);
    /// The unrolled axis, or null if every rank runs the same program.
    AxisAttr getUnrolledAxis();
    /// Number of coordinates along the unrolled axes; one if there are none.
    int64_t getNumCoordinates();
    /// The manual and auto axes: those on which ranks of one program lie.
    ::llvm::SmallVector<AxisAttr> getRankAxes();
    /// The layout with `kind` on every manual axis, and replicated on auto axes;
    /// null if there are neither.
    LayoutAttr getRankLayout(Kind kind);
  }];
}

def Piper_StateOp : Piper_Op<"state", [Symbol, Piper_SymbolUser]> {
  let summary = "declare a parameter, buffer or constant under its PyTorch name";
  let description = [{
    The type is that of the whole tensor; `layout` says how ranks hold it.
    `aliases` are the other names of a tied weight. `holders` are the
    coordinates on which some chunk uses the state, recorded by bucketing.
    `replication` and `optimization` are what directives recorded. A parameter
    is initialised from the model or from (seed, name), never from a rank.

    **Constraints**
    - the type has no encoding: the layout is stated apart
    - only a parameter can be frozen, replicated or optimized
    - aliases are distinct and differ from the name
    - the layout names manual and auto axes of the mesh; a sharded dim exists, and
      the ranks that shard it divide its size

    ```mlir
    piper.state @embed.weight parameter : tensor<32x16xf32> aliases ["head.weight"] holders [0, 1]
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Piper_StateKindAttr:$kind,
                       TypeAttrOf<AnyRankedTensor>:$type, UnitAttr:$frozen,
                       OptionalAttr<Piper_LayoutAttr>:$layout,
                       OptionalAttr<StrArrayAttr>:$aliases,
                       OptionalAttr<DenseI64ArrayAttr>:$holders,
                       OptionalAttr<Piper_ReplicationAttr>:$replication,
                       OptionalAttr<Piper_OptimizationAttr>:$optimization);
  let assemblyFormat = [{
    $sym_name `` $kind (`frozen` $frozen^)? `:` $type (`layout` $layout^)?
    (`aliases` $aliases^)? (`holders` $holders^)?
    (`replication` $replication^)? (`optimization` $optimization^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::mlir::RankedTensorType getTensorType() {
      return ::llvm::cast<::mlir::RankedTensorType>(getType());
    }
    bool isTrainable() { return getKind() == StateKind::Parameter && !getFrozen(); }
  }];
}

def Piper_BucketOp : Piper_Op<"bucket", [Symbol, Piper_SymbolUser]> {
  let summary = "group states that are gathered, reduced and updated together";
  let description = [{
    A bucket owns its storages, as slots. A slot holds the members one after
    the other, each flattened in row-major order, in the order written here:
    that order is fixed, so that a checkpoint can be resharded later. `value` is
    what the optimizer updates, `compute` is derived from it (a cast), `grad` is
    where gradients are accumulated; it is absent when nothing is trained.
    Members share users, holders, layout and dtype, so a contribution to a
    bucket always fills it whole and a bucket never spans chunks.

    **Constraints**
    - at least one member; members are states, each in one bucket and once
    - members agree in dtype and layout
    - every slot is a tensor of rank 1
    - a slot holds as many elements as the members have together on one rank: all
      of them, or that number divided by the sizes of the axes on which the slot
      is sharded, rounded up; where `value` is sharded, a whole slot is as long as
      all shards together, with zeros at the end

    ```mlir
    piper.bucket @fc.weight$b [@fc.weight, @fc.bias] value : tensor<272xf32> grad : tensor<272xf32>
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, FlatSymbolRefArrayAttr:$members,
                       TypeAttrOf<AnyRankedTensor>:$value,
                       OptionalAttr<TypeAttrOf<AnyRankedTensor>>:$compute,
                       OptionalAttr<TypeAttrOf<AnyRankedTensor>>:$grad);
  let assemblyFormat = [{
    $sym_name $members `value` `:` $value (`compute` `:` $compute^)?
    (`grad` `:` $grad^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    /// The type of a slot, or null if the bucket does not have it.
    ::mlir::RankedTensorType getSlotType(Slot slot);
    /// The axes on which slot `value` is sharded.
    ::llvm::SmallVector<::mlir::StringAttr> getShardAxes();
    /// The length of a whole slot of `elements`: that of all shards of `value`.
    int64_t getWholeSize(int64_t elements, MeshOp mesh);
  }];
}

def Piper_StreamOp : Piper_Op<"stream", [Symbol]> {
  let summary = "name a queue of instructions that runs beside the others";
  let description = [{
    A stream has one queue per communicator that is for it. Of two streams that
    can go on, that of higher `priority` goes first. `sms` are the streaming
    multiprocessors that a message or collective of a communicator holds on its
    device until it is done: also while it waits for its other members.

    ```mlir
    piper.stream @pp priority = 1 sms = 4
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, OptionalAttr<I64Attr>:$priority,
                       OptionalAttr<Piper_Index>:$sms);
  let assemblyFormat = [{
    $sym_name (`priority` `=` $priority^)? (`sms` `=` $sms^)? attr-dict
  }];
}

def Piper_CommOp : Piper_Op<"comm", [Symbol, Piper_SymbolUser]> {
  let summary = "name a set of ranks that communicate, with a queue of its own";
  let description = [{
    For a rank at coordinate c, the members are the ranks whose coordinate is in
    `coordinates` and whose position on every manual axis outside `axes` equals
    its own. A communicator of messages joins two coordinates, the first of
    which sends.

    **Constraints**
    - the axes are manual or auto axes of the mesh
    - the stream exists

    ```mlir
    piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, StrArrayAttr:$axes,
                       DenseI64ArrayAttr:$coordinates,
                       FlatSymbolRefAttr:$stream);
  let assemblyFormat = [{
    $sym_name `axes` $axes `coordinates` $coordinates `for` $stream attr-dict
  }];
}

#endif // PIPER_SYMBOL_OPS_TD
