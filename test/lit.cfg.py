"""How lit runs the IR tests: every .mlir file under test/ is one."""

import importlib.util
import os
import sys

import lit.formats

config.name = "piper"
config.test_format = lit.formats.ShTest()
config.suffixes = [".mlir"]
config.test_source_root = os.path.dirname(__file__)

# piper-opt lies beside the interpreter that runs lit; FileCheck and not come with LLVM.
llvm = importlib.util.find_spec("llvm").submodule_search_locations[0]
path = [os.path.dirname(sys.executable), os.path.join(llvm, "bin"), os.environ["PATH"]]
config.environment["PATH"] = os.pathsep.join(path)
config.environment["FILECHECK_OPTS"] = "-enable-var-scope"
