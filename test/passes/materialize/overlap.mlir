// A forward and a backward cell that may overlap: what one exchanges goes on beside
// what the other computes. The layer is that of partition.mlir.

// DEFINE: %{compile} = piper-opt --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize
// DEFINE: %{compile-again} = piper-opt --piper-shard --piper-remat --piper-partition --piper-outline-chunks --piper-record --piper-materialize
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' %S/../outline/partition.mlir | %{compile} --piper-lower | FileCheck %s
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "B", "F.counts", "F1", "B.dispatch", "F.dispatch", "B1", "F2", "B.collect", "F.collect", "F3", "B2"]\n&/' %S/../outline/partition.mlir | %{compile} | FileCheck %s --check-prefix=TEMPLATE
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1W0 1B1"/' %S/../outline/partition.mlir | %{compile} --piper-lower | FileCheck %s --check-prefix=HALVES
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1W0 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "I", "F.counts", "I.dispatch", "W", "F1", "F.dispatch", "I1", "I.collect", "F2", "F.collect", "W1", "I2", "F3"]\n&/' %S/../outline/partition.mlir | %{compile} | FileCheck %s --check-prefix=SPREAD
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1I0)OVERLAP_F_B 1W0 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["I", "I.dispatch", "F", "F.counts", "F1", "F.dispatch", "I1", "I.collect", "F2", "F.collect", "I2", "F3"]\n&/' %S/../outline/partition.mlir | %{compile} | FileCheck %s --check-prefix=BEHIND
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.remat <tag = "moe"> policy = "full"\n  piper.do.overlap <tag = "moe"> order = ["B", "B.counts", "F", "F.counts", "B1", "F1", "B.dispatch", "F.dispatch", "B.dispatch", "B2", "B.collect", "F2", "B.collect", "F.collect", "B3", "F3"]\n&/' %S/../outline/partition.mlir | %{compile-again} | FileCheck %s --check-prefix=AGAIN
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.remat <tag = "moe"> policy = "full"\n&/' %S/../outline/partition.mlir | %{compile-again} --piper-lower | FileCheck %s --check-prefix=MEANWHILE

// Without a directive the backward cell goes first. The all_to_all of one microbatch
// is between pieces of the other. While the host waits for counts it has queued what
// these do not need.
// CHECK-LABEL: piper.program @train$pp1
// CHECK: run @moe.0$F3({{.*}} mb 0
// CHECK: run @moe.0$B({{.*}} mb 0
// CHECK: all_to_all {{.*}} as "moe.0 dispatch" mb 0
// CHECK: run @moe.0$F({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 counts" mb 1
// CHECK: run @moe.0$F1({{.*}} mb 1
// CHECK: host_wait {{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 dispatch" mb 1
// CHECK: run @moe.0$B1({{.*}} mb 0
// CHECK: all_to_all {{.*}} as "moe.0 collect" mb 0
// CHECK: run @moe.0$F2({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 collect" mb 1
// CHECK: run @moe.0$B2({{.*}} mb 0
// CHECK: run @moe.0$F3({{.*}} mb 1
// CHECK: run @moe.0$B({{.*}} mb 1

// TEMPLATE-LABEL: piper.cluster @train$cluster
// TEMPLATE: run @moe.0$F({{.*}} mb 1
// TEMPLATE: run @moe.0$B({{.*}} mb 0
// TEMPLATE: as "moe.0 counts" mb 1
// TEMPLATE: run @moe.0$F1({{.*}} mb 1
// TEMPLATE: as "moe.0 dispatch" mb 0
// TEMPLATE: host_wait {{.*}} mb 1
// TEMPLATE: as "moe.0 dispatch" mb 1
// TEMPLATE: run @moe.0$B1({{.*}} mb 0
// TEMPLATE: run @moe.0$F2({{.*}} mb 1
// TEMPLATE: as "moe.0 collect" mb 0
// TEMPLATE: as "moe.0 collect" mb 1
// TEMPLATE: run @moe.0$F3({{.*}} mb 1
// TEMPLATE: run @moe.0$B2({{.*}} mb 0

// Where the schedule has both halves of the backward cell, gradients of weights go
// behind what is exchanged. The host waits for counts with some of them issued, too.
// HALVES-LABEL: piper.program @train$pp1
// HALVES: run @moe.0$F3({{.*}} mb 0
// HALVES: run @moe.0$I({{.*}} mb 0
// HALVES: all_to_all {{.*}} as "moe.0 dispatch" mb 0
// HALVES: run @moe.0$F({{.*}} mb 1
// HALVES: %[[MADE:.*]] = record
// HALVES: %{{.*}}, %[[CAME:.*]] = all_to_all {{.*}} as "moe.0 counts" mb 1
// HALVES: run @moe.0$F1({{.*}} mb 1
// HALVES: run @moe.0$W({{.*}} mb 0
// HALVES: host_wait {{.*}} mb 1 after %[[MADE]], %[[CAME]]
// HALVES: all_to_all {{.*}} as "moe.0 dispatch" mb 1
// HALVES: run @moe.0$I1({{.*}} mb 0
// HALVES: all_to_all {{.*}} as "moe.0 collect" mb 0
// HALVES: run @moe.0$W1({{.*}} mb 0
// HALVES: run @moe.0$F2({{.*}} mb 1
// HALVES: all_to_all {{.*}} as "moe.0 collect" mb 1
// HALVES: run @moe.0$I2({{.*}} mb 0
// HALVES: send {{.*}} as "moe.0$I2#0"
// HALVES: run @moe.0$F3({{.*}} mb 1
// HALVES: run @moe.0$B({{.*}} mb 1

// SPREAD-LABEL: piper.cluster @train$cluster
// SPREAD: run @moe.0$F({{.*}} mb 1
// SPREAD: run @moe.0$I({{.*}} mb 0
// SPREAD: as "moe.0 counts" mb 1
// SPREAD: as "moe.0 dispatch" mb 0
// SPREAD: run @moe.0$W({{.*}} mb 0
// SPREAD: run @moe.0$F1({{.*}} mb 1
// SPREAD: host_wait {{.*}} mb 1
// SPREAD: as "moe.0 dispatch" mb 1
// SPREAD: run @moe.0$I1({{.*}} mb 0
// SPREAD: as "moe.0 collect" mb 0
// SPREAD: run @moe.0$F2({{.*}} mb 1
// SPREAD: as "moe.0 collect" mb 1
// SPREAD: run @moe.0$W1({{.*}} mb 0
// SPREAD: run @moe.0$I2({{.*}} mb 0
// SPREAD: run @moe.0$F3({{.*}} mb 1

// A template without them leaves them where the schedule has them. Losses are summed
// with the last of them.
// BEHIND-LABEL: piper.cluster @train$cluster
// BEHIND: run @moe.0$I({{.*}} mb 0
// BEHIND-NOT: run @moe.0$W
// BEHIND: run @moe.0$F3({{.*}} mb 1
// BEHIND-NEXT: sum
// BEHIND-NEXT: all_reduce
// BEHIND-NEXT: run @moe.0$W({{.*}} mb 0
// BEHIND: run @moe.0$W1({{.*}} mb 0
// BEHIND: run @moe.0$B({{.*}} mb 1

// A backward pass that exchanges rows again has two pieces of each name: what goes
// to experts again, and gradients. A name stands as often, the first time for the first.
// AGAIN-LABEL: piper.cluster @train$cluster
// AGAIN: %[[B:.*]]:4 = run @moe.0$B({{.*}} mb 0
// AGAIN: %[[COUNTS:.*]] = all_to_all %[[B]]#3 {{.*}} as "moe.0 counts" mb 0
// AGAIN: run @moe.0$F({{.*}} mb 1
// AGAIN: as "moe.0 counts" mb 1
// AGAIN: %[[B1:.*]]:2 = run @moe.0$B1({{.*}} mb 0
// AGAIN: run @moe.0$F1({{.*}} mb 1
// AGAIN: host_wait %[[B]]#3, %[[COUNTS]] mb 0
// AGAIN: %[[FIRST:.*]] = all_to_all %[[B1]]#1 {{.*}} as "moe.0 dispatch" mb 0
// AGAIN: host_wait {{.*}} mb 1
// AGAIN: as "moe.0 dispatch" mb 1
// AGAIN: %[[SECOND:.*]] = all_to_all %[[B1]]#0 {{.*}} as "moe.0 dispatch" mb 0
// AGAIN: %[[B2:.*]]:3 = run @moe.0$B2(%[[FIRST]], %[[COUNTS]], %[[SECOND]], {{.*}} mb 0
// AGAIN: all_to_all %[[B2]]#0 {{.*}} as "moe.0 collect" mb 0
// AGAIN: run @moe.0$F2({{.*}} mb 1
// AGAIN: all_to_all %[[B2]]#1 {{.*}} as "moe.0 collect" mb 0
// AGAIN: as "moe.0 collect" mb 1
// AGAIN: run @moe.0$B3({{.*}} mb 0
// AGAIN: run @moe.0$F3({{.*}} mb 1

// By default what such a pass computes beside its wait comes before the other cell.
// MEANWHILE-LABEL: piper.program @train$pp1
// MEANWHILE: run @moe.0$F3({{.*}} mb 0
// MEANWHILE: run @moe.0$B({{.*}} mb 0
// MEANWHILE: as "moe.0 counts" mb 0
// MEANWHILE: run @moe.0$B1({{.*}} mb 0
// MEANWHILE: host_wait {{.*}} mb 0
// MEANWHILE: as "moe.0 dispatch" mb 0
// MEANWHILE: as "moe.0 dispatch" mb 0
// MEANWHILE: run @moe.0$F({{.*}} mb 1
// MEANWHILE: as "moe.0 counts" mb 1
// MEANWHILE: run @moe.0$F1({{.*}} mb 1
// MEANWHILE: host_wait {{.*}} mb 1
// MEANWHILE: as "moe.0 dispatch" mb 1
// MEANWHILE: run @moe.0$B2({{.*}} mb 0
