// Streams that two directives see differently, and what is no stream.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-stream

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-note @+1 {{the other directive is here}}
  piper.do.stream @dp priority = 1 sms = 16
  // expected-error @+1 {{sets sms to 8 : i64, which another directive sets to 16 : i64}}
  piper.do.stream @dp priority = 1 sms = 8
}

// -----

piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{expected the name of a stream, got @mesh, a piper.mesh}}
  piper.do.stream @mesh priority = 1
}
