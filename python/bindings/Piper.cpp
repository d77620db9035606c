// The Python extension piper.mlir._mlir_libs._piper.

#include "dialect/CAPI.h"
#include "mlir/Bindings/Python/NanobindAdaptors.h"
#include "passes/CAPI.h"

namespace nb = nanobind;

NB_MODULE(_piper, m) {
  m.doc() = "Registration of the Piper dialect and its passes.";

  m.def(
      "register_dialects",
      [](MlirDialectRegistry registry) {
        mlirDialectHandleInsertDialect(mlirGetDialectHandle__piper__(),
                                       registry);
      },
      nb::arg("registry"));
  m.def("register_passes", &piperRegisterPasses);
}
