//===- Attributes.td - Facts about values, states and ops -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_ATTRIBUTES_TD
#define PIPER_ATTRIBUTES_TD

include "dialect/Enums.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/TensorEncoding.td"

class Piper_Attr<string name, string attrMnemonic, list<Trait> traits = []>
    : AttrDef<Piper_Dialect, name, traits> {
  let mnemonic = attrMnemonic;
}

def Piper_AxisAttr : Piper_Attr<"Axis", "axis"> {
  let summary = "one axis of a mesh: name, number of ranks, role";
  let description = [{
    The role says how the axis is compiled: *unrolled* axes get one program per
    coordinate; on *manual* axes the program text is that of one rank; values on
    *auto* axes have global meaning and are partitioned by rules.

    Example: `#piper.axis<pp = 2 unrolled>`
  }];
  let parameters = (ins "::mlir::StringAttr":$name, "int64_t":$size,
                        EnumParameter<Piper_AxisRole>:$role);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}

def Piper_AxisKindAttr : Piper_Attr<"AxisKind", "axis_kind"> {
  let summary = "what the ranks along one axis hold of a value";
  let parameters = (ins "::mlir::StringAttr":$axis,
                        EnumParameter<Piper_Kind>:$kind, "int64_t":$dim);
  let hasCustomAssemblyFormat = 1;
}

def Piper_LayoutAttr : Piper_Attr<"Layout", "layout",
    [DeclareAttrInterfaceMethods<VerifiableTensorEncoding>]> {
  let summary = "how a tensor lies on the mesh; the encoding of a tensor type";
  let description = [{
    One kind per axis, in mesh order: `replicated` (every rank holds the same),
    `partial` (the value is the sum over the ranks), `shard(d)` (ranks hold
    consecutive parts of dim `d`), `varying` (ranks hold unrelated values).

    A tensor with a dynamic number of rows also states a `bound`, at which
    memory is checked, and may state what to `expect`, at which time is
    estimated; both count rows of dim 0.

    Example: `#piper.layout<edp = replicated, ep = shard(0)>`,
    `#piper.layout<ep = varying, bound = 128, expect = 64>`

    **Constraints**
    - no axis appears twice
    - a sharded dim exists in the tensor
    - bound and expectation are not negative, and the bound is the larger
    - a dynamic shape has a bound; a static shape has none
  }];
  let parameters = (ins
      OptionalArrayRefParameter<"::piper::AxisKindAttr">:$axes,
      "int64_t":$bound, "int64_t":$expect);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    /// The kind on `axis`; replicated where the layout does not name the axis.
    ::piper::Kind getKind(::llvm::StringRef axis) const;
    /// The same layout with another kind on `axis`, which it must name.
    LayoutAttr withKind(::mlir::StringAttr axis, ::piper::Kind kind,
                        int64_t dim = 0) const;
  }];
}

def Piper_TagAttr : Piper_Attr<"Tag", "tag"> {
  let summary = "the chunk and pass that an op of the captured step belongs to";
  let parameters = (ins "::mlir::StringAttr":$chunk,
                        EnumParameter<Piper_Pass>:$pass);
  let assemblyFormat = "`<` $chunk $pass `>`";
}

def Piper_FactsAttr : Piper_Attr<"Facts", "facts"> {
  let summary = "all that the compiler knows of a torch op";
  let description = [{
    Attached by the frontend's table, so that no pass needs to know ATen.
    `strided` marks an op whose first result is not contiguous as captured,
    `heavy` one that is too costly to be computed again in the backward pass.
    `mask = 7` is the rule by which a backward op of several results is split:
    its argument 7 is a list of flags, and only results whose flag is set are
    computed.

    `rule` names the dims of operands and results: dims of one name are one factor
    of the op, of which a rank has the same part everywhere; a dim that must be
    whole has a name of its own on each side, and `1` is a dim of one element that
    broadcasts. Behind `;` come integer arguments that are the size of a factor,
    `1.2` being item 2 of list 1; factors that results without them are sums over;
    whether the op is linear in all operands together; and other ops that take parts
    of a factor which this one needs whole. These get which part it is by keyword,
    what an op `after` which they come makes of each part, and make terms of results
    without the factor, but for the one that is the `same`. Their own rules say so:
    `c at 2` that they compute the part of `c` of a rank whose index is operand 2,
    `sum c but 1` that result 1 is no term.

    Where ranks share values out, ops of kernels keep their rules: they say what
    ranks hold of results.

    Example: `#piper.facts<pure, flops = 4096, heavy>`, `#piper.facts<view>`,
    `#piper.facts<pure, flops = 64, rule = "m i, e o i, r e -> m o">`,
    `#piper.facts<pure, rule = "m k, k n -> m n; sum k">`,
    `#piper.facts<pure, rule = "v w, a -> a w; v by piper.embedding_part.default">`,
    `#piper.facts<pure, rule = "v w, a, 1 -> a w; sum v, v at 2">`,
    `#piper.facts<view, rule = "a b c -> a b c d; linear, 1.2 = c">`
  }];
  let parameters = (ins EnumParameter<Piper_Effect>:$effect, "int64_t":$flops,
                        "bool":$strided, "bool":$heavy,
                        "std::optional<int64_t>":$mask,
                        OptionalParameter<"::mlir::StringAttr">:$rule);
  let hasCustomAssemblyFormat = 1;
}

def Piper_CostAttr : Piper_Attr<"Cost", "cost"> {
  let summary = "what one launch of a kernel costs: FLOPs and bytes touched";
  let parameters = (ins "int64_t":$flops, "int64_t":$bytes);
  let assemblyFormat = "`<` struct(params) `>`";
}

def Piper_ArgAttr : Piper_Attr<"Arg", "arg"> {
  let summary = "an operand's place in the argument template of a torch op";
  let parameters = (ins "int64_t":$index);
  let assemblyFormat = "`<` $index `>`";
}

def Piper_DeviceAttr : Piper_Attr<"Device", "device"> {
  let summary = "the device of the rank that runs the program";
  let assemblyFormat = "`<` `rank` `>`";
}

def Piper_ConstAttr : Piper_Attr<"Const", "const"> {
  let summary = "a named Python constant such as `torch.contiguous_format`";
  let parameters = (ins "::mlir::StringAttr":$name);
  let assemblyFormat = "`<` $name `>`";
}

def Piper_SelectAttr : Piper_Attr<"Select", "select"> {
  let summary = "which chunks or states a directive is about";
  let description = [{
    `all`, or one term: `tag = "layer"` or `state = "*.norm.*"`, both globs over
    names, negated by `not`.

    Example: `#piper.select<not state = "*.bias">`

    **Constraints**
    - the key is all, tag or state; the value is a glob
  }];
  let parameters = (ins "bool":$negated, "::mlir::StringAttr":$key,
                        "::mlir::StringAttr":$value);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    bool isAll() const { return getKey().getValue() == "all"; }
    /// Whether a state of this name is selected.
    bool matchesState(::llvm::StringRef name) const;
    /// Whether a chunk of this name, such as `layer.3`, is selected.
    bool matchesChunk(::llvm::StringRef name) const;
  }];
}

def Piper_HalfAttr : Piper_Attr<"Half", "half"> {
  let summary = "one half of a backward chunk: input gradients or weight gradients";
  let description = [{
    The chunk, the operands of the whole that it takes and the results of the
    whole that it returns.

    Example: `#piper.half<@layer.0$I [0, 2] -> [0]>`
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$chunk,
      OptionalArrayRefParameter<"int64_t">:$operands,
      OptionalArrayRefParameter<"int64_t">:$results);
  let hasCustomAssemblyFormat = 1;
}

def Piper_ReplicationAttr : Piper_Attr<"Replication", "replication"> {
  let summary = "what a state's replicate directive recorded on it";
  let description = [{
    The data axes, the ZeRO stage, the size in bytes at which a bucket is full
    and the dtype in which gradients are accumulated and reduced (absent: the
    state's own); then what differs from the default: when gradients are reduced
    (`last`), on which of the axes states are sharded (all of them, from ZeRO-1
    on), how long a gathered value is kept (`each` use), how many runs before its use
    it is gathered (1), and up to how many bytes that are whole at a coordinate
    (0: no limit).

    Example: `#piper.replication<["rep", "dp"], zero = 3, bucket = 25000000, dtype = f32, reduce = "each", shard = ["dp"], gather = "group", prefetch = 2, limit = 64000000>`
  }];
  let parameters = (ins "::mlir::ArrayAttr":$axes, "int64_t":$zero,
                        "int64_t":$bucket, OptionalParameter<"::mlir::Type">:$dtype,
                        "::mlir::StringAttr":$reduce, "::mlir::ArrayAttr":$shard,
                        "::mlir::StringAttr":$gather, "int64_t":$prefetch,
                        "int64_t":$limit);
  let extraClassDeclaration = [{
    /// Whether every contribution is reduced by itself.
    bool reducesEach() const { return getReduce() == "each"; }
    /// Whether states are whole only while something uses them.
    bool gathersInStep() const {
      return getZero() == 3 || (getZero() > 0 && getGather() == "step");
    }
  }];
  let hasCustomAssemblyFormat = 1;
}

def Piper_OptimizationAttr : Piper_Attr<"Optimization", "optimization"> {
  let summary = "what a state's update directive recorded on it";
  let description = [{
    The import path of the optimizer factory, the bound of the global gradient
    norm (absent: no clipping), the dtype of the values that the optimizer
    updates (absent: that of the state), and whether a step whose norm is not
    finite leaves the state as it is.

    Example: `#piper.optimization<"train:make_adamw", clip = 1.0, master = f32, skip_nonfinite>`
  }];
  let parameters = (ins "::mlir::StringAttr":$optimizer,
                        OptionalParameter<"::mlir::FloatAttr">:$clip,
                        OptionalParameter<"::mlir::Type">:$master,
                        OptionalParameter<"::mlir::UnitAttr">:$skipNonfinite);
  let hasCustomAssemblyFormat = 1;
}

#endif // PIPER_ATTRIBUTES_TD
