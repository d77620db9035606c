// A forward and a backward cell that may overlap: what one exchanges goes on beside
// what the other computes. The layer is that of partition.mlir.

// DEFINE: %{compile} = piper-opt --piper-shard --piper-partition --piper-outline-chunks --piper-record --piper-materialize
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' %S/partition.mlir | %{compile} --piper-lower | FileCheck %s
// RUN: sed -e 's/"1F0 1B0 1F1 1B1"/"1F0 (1F1;1B0)OVERLAP_F_B 1B1"/' -e 's/^  piper.do.order/  piper.do.overlap <tag = "moe"> order = ["F", "B", "F.counts", "B.dispatch", "F.dispatch", "B1", "F1", "B.collect", "F.collect", "F2", "B2"]\n&/' %S/partition.mlir | %{compile} | FileCheck %s --check-prefix=TEMPLATE

// Without a directive the backward cell goes first. The all_to_all of one microbatch
// is between pieces of the other.
// CHECK-LABEL: piper.program @train$pp1
// CHECK: run @moe.0$F2({{.*}} mb 0
// CHECK: run @moe.0$B({{.*}} mb 0
// CHECK: all_to_all {{.*}} as "moe.0 dispatch" mb 0
// CHECK: run @moe.0$F({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 counts" mb 1
// CHECK: host_wait {{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 dispatch" mb 1
// CHECK: run @moe.0$B1({{.*}} mb 0
// CHECK: all_to_all {{.*}} as "moe.0 collect" mb 0
// CHECK: run @moe.0$F1({{.*}} mb 1
// CHECK: all_to_all {{.*}} as "moe.0 collect" mb 1
// CHECK: run @moe.0$B2({{.*}} mb 0
// CHECK: run @moe.0$F2({{.*}} mb 1
// CHECK: run @moe.0$B({{.*}} mb 1

// TEMPLATE-LABEL: piper.cluster @train$cluster
// TEMPLATE: run @moe.0$F({{.*}} mb 1
// TEMPLATE: run @moe.0$B({{.*}} mb 0
// TEMPLATE: as "moe.0 counts" mb 1
// TEMPLATE: as "moe.0 dispatch" mb 0
// TEMPLATE: host_wait {{.*}} mb 1
// TEMPLATE: as "moe.0 dispatch" mb 1
// TEMPLATE: run @moe.0$B1({{.*}} mb 0
// TEMPLATE: run @moe.0$F1({{.*}} mb 1
// TEMPLATE: as "moe.0 collect" mb 0
// TEMPLATE: as "moe.0 collect" mb 1
// TEMPLATE: run @moe.0$F2({{.*}} mb 1
// TEMPLATE: run @moe.0$B2({{.*}} mb 0
