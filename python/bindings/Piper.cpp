// The Python extension piper.mlir._mlir_libs._piper.

#include "dialect/CAPI.h"
#include "mlir/Bindings/Python/NanobindAdaptors.h"
#include "passes/CAPI.h"

namespace nb = nanobind;

NB_MODULE(_piper, m) {
  m.doc() = "Registration of the Piper dialect and its passes; dumps.";

  m.def(
      "register_dialects",
      [](MlirDialectRegistry registry) {
        mlirDialectHandleInsertDialect(mlirGetDialectHandle__piper__(),
                                       registry);
      },
      nb::arg("registry"));
  m.def("register_passes", &piperRegisterPasses);
  m.def(
      "dump_programs",
      [](MlirModule module) {
        std::string text;
        piperDumpPrograms(
            module,
            [](MlirStringRef part, void *into) {
              static_cast<std::string *>(into)->append(part.data, part.length);
            },
            &text);
        return text;
      },
      nb::arg("module"),
      "All programs of a module as JSON: a list of name, entry, at, rows.");
}
