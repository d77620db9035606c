// Where users' own passes stand, and what is left to do there: nothing, if all are done.
// RUN: piper-opt %s --piper-user-passes=at=facts | FileCheck %s
// RUN: piper-opt %s --piper-user-passes=at=step | FileCheck %s

// One of a later point is not looked at, nor is a module without a strategy.

// CHECK: piper.do.user_pass "own_pass:first" at "step" done loc
// CHECK: piper.do.user_pass "own_pass:last" at "cluster" loc
piper.mesh @mesh []
piper.strategy @strategy mesh = @mesh {
  piper.do.user_pass "own_pass:first" at "step" done
  piper.do.user_pass "own_pass:last" at "cluster"
}
