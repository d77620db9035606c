//===- Layouts.h - What kinds on axes mean for types
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#ifndef PIPER_DIALECT_LAYOUTS_H
#define PIPER_DIALECT_LAYOUTS_H

#include "dialect/Piper.h"

namespace piper {

/// The layout of a tensor type, or null.
LayoutAttr getLayout(mlir::Type type);

/// The kind of a type on an axis; replicated if its layout does not name it.
Kind getKind(mlir::Type type, llvm::StringRef axis);

/// The same shape and dtype with another layout, or with none if it is null.
mlir::RankedTensorType withLayout(mlir::Type type, LayoutAttr layout);

/// The same shape, dtype and bounds with the kinds of another layout.
mlir::RankedTensorType withKinds(mlir::Type type, LayoutAttr kinds);

/// The type that a kernel sees: without kinds on axes that `like` does not
/// name, and without bounds.
mlir::RankedTensorType kernelView(mlir::Type type, mlir::Type like);

/// The kind that a gradient has where its primal has `kind`. On a manual axis
/// each rank has a share of the loss, so that the gradient of what is
/// replicated is partial; on an auto axis all have the whole of it.
Kind dual(Kind kind, AxisRole role);

/// The layout of a gradient whose primal has this layout; null for null. An
/// axis that the mesh, which may be null, does not have counts as manual.
LayoutAttr dual(LayoutAttr layout, MeshOp mesh);

/// The module's mesh, or null. Searched from the front, where the frontend puts
/// it; passes add only streams before it.
MeshOp findMesh(mlir::Operation *op);

/// Product of the sizes of `axes`, an array of strings; 1 for unknown axes.
int64_t product(MeshOp mesh, mlir::ArrayAttr axes);

/// The shape that one rank holds of a state, by its layout: that of the first
/// part, if the last ones have padding.
llvm::SmallVector<int64_t> localShape(StateOp state, MeshOp mesh);

/// Number of elements of a static shape.
int64_t numElements(llvm::ArrayRef<int64_t> shape);

/// Bytes of a tensor, with as many rows as its layout lets expect where their
/// number is not known; less than a byte counts as one.
int64_t getNumBytes(mlir::Type type);

/// What a launch makes of its operands: on each axis of `replicated` replicated
/// if all of them are, else varying.
LayoutAttr mixKinds(mlir::ValueRange operands, LayoutAttr replicated);

} // namespace piper

#endif // PIPER_DIALECT_LAYOUTS_H
