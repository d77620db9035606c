# LLVM and MLIR come as Python packages: ask the interpreter where they lie, unless told otherwise.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
# MLIR asks for Python3, nanobind for Python: both must be the same interpreter.
set(Python3_EXECUTABLE "${Python_EXECUTABLE}" CACHE FILEPATH "")

foreach(package LLVM MLIR)
  if(${package}_DIR)
    continue()
  endif()
  string(TOLOWER ${package} module)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import importlib.util as u; print(u.find_spec('${module}').submodule_search_locations[0])"
    OUTPUT_VARIABLE root
    OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE status
    ERROR_QUIET)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "expected the Python package '${module}' (see [build-system] in "
      "pyproject.toml) or -D${package}_DIR=..., got neither")
  endif()
  set(${package}_DIR "${root}/lib/cmake/${module}" CACHE PATH "")
endforeach()
