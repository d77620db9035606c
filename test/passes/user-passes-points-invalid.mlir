// A point that does not exist, and the pipelines that begin with those that do.
// RUN: not piper-opt %s --piper-user-passes=at=programs 2>&1 | FileCheck %s --check-prefix=POINT
// RUN: not piper-opt %s --piper-record 2>&1 | FileCheck %s --check-prefix=RECORD
// RUN: not piper-opt %s --piper-materialize 2>&1 | FileCheck %s --check-prefix=FACTS
// RUN: not piper-opt %s --piper-lower 2>&1 | FileCheck %s --check-prefix=LOWER

// POINT: piper-user-passes expected at to be one of step, chunks, facts, cluster, got 'programs'
// RECORD: runs the Python pass "own_pass:chunks" at "chunks"
// FACTS: runs the Python pass "own_pass:facts" at "facts"
// LOWER: runs the Python pass "own_pass:cluster" at "cluster"
piper.mesh @mesh []
piper.strategy @strategy mesh = @mesh {
  piper.do.user_pass "own_pass:cluster" at "cluster"
  piper.do.user_pass "own_pass:facts" at "facts"
  piper.do.user_pass "own_pass:chunks" at "chunks"
}
