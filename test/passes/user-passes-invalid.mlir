// Drivers without Python refuse the user's own passes where they would have to run.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-user-passes=at=facts
// RUN: sed -e 's/facts/cluster/g' %s | piper-opt -split-input-file -verify-diagnostics --piper-user-passes=at=cluster

piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.user_pass "own_pass:other" at "facts" done
  // expected-error @+1 {{expected a driver that runs the Python pass "own_pass:run" at "facts", such as python -m piper.opt, got one without Python}}
  piper.do.user_pass "own_pass:run" at "facts" options {rate = 0.5}
}

// -----

// One that lies behind would never run.
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected the Python pass "own_pass:run" to have run at "step", where piper-user-passes{at=step} stands, got to "facts" without it}}
  piper.do.user_pass "own_pass:run" at "step"
}
