// Orders of pieces that cannot be, for the layer of partition.mlir.

// DEFINE: %{compile} = not piper-opt --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize
// DEFINE: %{compile-again} = not piper-opt --piper-shard --piper-remat --piper-partition --piper-outline-chunks --piper-record --piper-materialize

// A piece that the chunks do not have.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["B", "B.dispatch", "F4"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, which are B, B.dispatch, B1, B.collect, B2, F, F.counts, F1, F.dispatch, F2, F.collect, F3, got "F4"{{$}}

// A piece comes once.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "B", "F"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=TWICE
// TWICE: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, which are {{.*}}, got "F" once more

// What a piece uses is there.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "F1", "F.dispatch", "F.counts", "F2", "F.collect", "F3", "B", "B.dispatch", "B1", "B.collect", "B2"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=EARLY
// EARLY: error: 'piper.do.overlap' op expected "F.dispatch" behind what it uses, which comes later

// No piece is left out.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "F.counts", "F1", "F.dispatch", "F2", "F.collect", "F3", "B", "B.dispatch", "B1"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=LEFT
// LEFT: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, got no B.collect, B2

// A name of two pieces stands twice, neither more often nor less.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.remat <tag = "moe"> policy = "full"\n  piper.do.overlap <tag = "moe"> order = ["B", "B.counts", "B1", "B.dispatch", "B.dispatch", "B.dispatch"]\n&/' %S/../outline/partition.mlir | %{compile-again} 2>&1 | FileCheck %s --check-prefix=THRICE
// THRICE: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, which are B, B.counts, B1, B.dispatch, B.dispatch, B2, B.collect, B.collect, B3, {{.*}}, got "B.dispatch" once more
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.remat <tag = "moe"> policy = "full"\n  piper.do.overlap <tag = "moe"> order = ["F", "F.counts", "F1", "F.dispatch", "F2", "F.collect", "F3", "B", "B.counts", "B1", "B.dispatch", "B.dispatch", "B2", "B.collect"]\n&/' %S/../outline/partition.mlir | %{compile-again} 2>&1 | FileCheck %s --check-prefix=ONCE
// ONCE: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, got no B.collect, B3

// What a piece uses is there, the second one of its name, too.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.remat <tag = "moe"> policy = "full"\n  piper.do.overlap <tag = "moe"> order = ["B", "B.counts", "B1", "B.dispatch", "B2"]\n&/' %S/../outline/partition.mlir | %{compile-again} 2>&1 | FileCheck %s --check-prefix=SECOND
// SECOND: error: 'piper.do.overlap' op expected "B2" behind what it uses, which comes later

// Gradients of weights come behind what the other half passes to them.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1W0 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "I", "W", "W1"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=WEIGHTS
// WEIGHTS: error: 'piper.do.overlap' op expected "W1" behind what it uses, which comes later

// A template that has some of them has all.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1W0 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["I", "I.dispatch", "F", "F.counts", "W", "F1", "F.dispatch", "I1", "I.collect", "F2", "F.collect", "I2", "F3"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=SOME
// SOME: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, got no W1

// They are part of a pair only right behind it.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1B1 1W0"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["I", "W"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=APART
// APART: error: 'piper.do.overlap' op expected each piece of chunks 'moe.0' and 'moe.0' once, which are I, I.dispatch, I1, I.collect, I2, F, F.counts, F1, F.dispatch, F2, F.collect, F3, got "W"{{$}}

// A directive that selects no chunk of the pair has no effect.
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "embed"> order = ["F", "B"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=CHUNK
// CHUNK: error: 'piper.do.overlap' op selects no chunks that may overlap: expected a pair of cells such as (0F1;0B0)OVERLAP_F_B in the schedule and chunks in both, between whose pieces ranks exchange values, got #piper.select<tag = "embed">

// Nor has one without such a pair in the schedule.
// RUN: sed -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "B"]\n&/' %S/../outline/partition.mlir | %{compile} 2>&1 | FileCheck %s --check-prefix=PAIR
// PAIR: error: 'piper.do.overlap' op selects no chunks that may overlap: {{.*}}, got #piper.select<tag = "moe">
