// What directives say of streams becomes what streams say of themselves.
// RUN: piper-opt %s --piper-stream | FileCheck %s

// A stream that nobody declared yet is, where its directive is written; a later
// pass finds it. Directives may each say a part, or the same twice.

// CHECK: piper.stream @dp priority = -1 sms = 16 loc(#[[LOC:.*]])
// CHECK: piper.stream @pp priority = 2 sms = 4 loc
// CHECK: piper.stream @compute loc
// CHECK: #[[LOC]] = loc("strategy.py":7:0)
piper.stream @pp priority = 2
piper.stream @compute
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  piper.do.stream @dp priority = -1 loc("strategy.py":7:0)
  piper.do.stream @pp sms = 4
  piper.do.stream @dp priority = -1 sms = 16 loc("strategy.py":8:0)
}
