# Piper's own code compiles without warnings. The LLVM package turns all warnings off for whoever
# uses it (-w), which would make -Werror mean nothing; its headers are SYSTEM includes instead.
string(REGEX REPLACE "(^| )-w( |$)" " " CMAKE_C_FLAGS "${CMAKE_C_FLAGS}")
string(REGEX REPLACE "(^| )-w( |$)" " " CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS}")
set(PIPER_WARNINGS -Wall -Wextra -Werror)
