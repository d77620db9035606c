# The MLIR package links everything against its own libLLVM.so, by absolute path. What Piper ships
# must run where that package is not installed, so link LLVM's static libraries instead.
set(LLVM_LINK_LLVM_DYLIB OFF)
set(MLIR_LINK_MLIR_DYLIB OFF)

set(static_llvm LLVMSupport LLVMCore LLVMAsmParser LLVMTargetParser LLVMBinaryFormat LLVMDemangle)

function(replace_llvm_dylib target property)
  get_target_property(libraries ${target} ${property})
  if(libraries AND "LLVM" IN_LIST libraries)
    list(REMOVE_ITEM libraries LLVM)
    list(APPEND libraries ${ARGN})
    set_target_properties(${target} PROPERTIES ${property} "${libraries}")
  endif()
endfunction()

foreach(target IN LISTS MLIR_EXPORTED_TARGETS)
  if(TARGET ${target})
    replace_llvm_dylib(${target} INTERFACE_LINK_LIBRARIES ${static_llvm} LLVMSupportLSP)
    replace_llvm_dylib(${target} MLIR_AGGREGATE_DEP_LIBS_IMPORTED ${static_llvm})
  endif()
endforeach()
