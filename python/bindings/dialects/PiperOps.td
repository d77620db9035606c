// MLIR writes the Python module where this file lies, so it cannot be Ops.td itself.
include "dialect/Ops.td"
