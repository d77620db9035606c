// More communicators than a rank may be a member of.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify=max-communicators=2
// RUN: piper-opt %s -split-input-file --piper-verify -o %t

// Coordinate 1 is in all three, coordinate 0 in two. The limit is of declared
// communicators: a runtime opens each.

piper.mesh @mesh [pp = 3 unrolled]
piper.stream @pp
piper.comm @send$0.1 axes [] coordinates [0, 1] for @pp
piper.comm @send$1.0 axes [] coordinates [1, 0] for @pp
// expected-error @+1 {{expected at most 2 communicators at coordinate 1, got one more: @send$1.2}}
piper.comm @send$1.2 axes [] coordinates [1, 2] for @pp
