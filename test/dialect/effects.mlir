// Generic passes may simplify what is computed, never what the cluster does: no
// launch, run, collective, transfer or state is merged, dropped or added, and
// nothing that takes storage, which is freed once.
// RUN: piper-opt -cse -canonicalize -symbol-dce %s | FileCheck %s

// The goldens hold nothing to simplify: as many ops of each kind after as before.
// RUN: piper-opt -print-op-stats %S/pipeline_1f1b.mlir -o %t 2> %t.before
// RUN: piper-opt -cse -canonicalize -symbol-dce -print-op-stats %S/pipeline_1f1b.mlir -o %t 2> %t.after
// RUN: diff %t.before %t.after
// RUN: FileCheck --check-prefix=1F1B %s < %t.after
// 1F1B-DAG: piper.accumulate , 12{{$}}
// 1F1B-DAG: piper.all_reduce , 11{{$}}
// 1F1B-DAG: piper.launch , 10{{$}}
// 1F1B-DAG: piper.run , 34{{$}}
// 1F1B-DAG: piper.transfer , 4{{$}}
// 1F1B-DAG: piper.state , 5{{$}}

// RUN: piper-opt -print-op-stats %S/zbv_zero3.mlir -o %t 2> %t.before
// RUN: piper-opt -cse -canonicalize -symbol-dce -print-op-stats %S/zbv_zero3.mlir -o %t 2> %t.after
// RUN: diff %t.before %t.after
// RUN: FileCheck --check-prefix=ZERO %s < %t.after
// ZERO-DAG: piper.all_gather , 22{{$}}
// ZERO-DAG: piper.reduce_scatter , 12{{$}}
// ZERO-DAG: piper.launch , 14{{$}}
// ZERO-DAG: piper.run , 40{{$}}
// ZERO-DAG: piper.transfer , 8{{$}}
// ZERO-DAG: piper.state , 8{{$}}

#R = #piper.layout<dp = replicated>
#P = #piper.layout<dp = partial>
#S = #piper.layout<dp = shard(0)>
#V = #piper.layout<dp = varying>
!t = tensor<4xf32>
!n = tensor<2xi64>
!tR = tensor<4xf32, #R>
!tP = tensor<4xf32, #P>
!tS = tensor<2xf32, #S>
!tV = tensor<4xf32, #V>
!nV = tensor<2xi64, #V>
!hR = tensor<4xbf16, #R>

// Symbols that nothing refers to stay: a state is trained all the same.
// CHECK: piper.mesh @mesh
// CHECK: piper.stream @unused
// CHECK: piper.state @w
// CHECK: piper.bucket @w$b
// CHECK: piper.state @v
// CHECK: piper.bucket @v$b
// CHECK: piper.state @unused.weight
// CHECK: piper.schedule @order
// CHECK: piper.kernel @square
piper.mesh @mesh [pp = 2 unrolled, dp = 2 manual]
piper.stream @unused
piper.state @w parameter : !t
piper.bucket @w$b [@w] value : !tS grad : !tP
piper.state @v parameter : !t
piper.bucket @v$b [@v] value : !tR
piper.state @unused.weight parameter : !t
piper.schedule @order axis = "pp" stages = 2 microbatches = 1 ["0F0", "1F0"]
piper.kernel @square(%x: !t) -> !t {
  %0 = torch "aten.mul.Tensor"(%x, %x) facts <pure> : (!t, !t) -> !t
  return %0 : !t
}
piper.chunk @square$F pass = F (%x: !tV) -> !tV {
  %y = launch @square(%x) : (!tV) -> !tV
  return %y : !tV
}

// ZeRO-3 gathers a bucket for F and again for B; merged, the parameters would be
// held all step. The equal reads are merged.
// CHECK-LABEL: piper.cluster @gathers
piper.cluster @gathers of @train phase = ordered mesh = @mesh microbatches = 1 {
  // CHECK-NEXT: %[[S:.*]] = read @w$b slot value at 0
  // CHECK-NEXT: %[[A:.*]] = all_gather %[[S]] at [0]
  // CHECK-NEXT: %[[B:.*]] = all_gather %[[S]] at [0]
  // CHECK-NEXT: %[[H:.*]] = convert %[[A]] at 0
  // CHECK-NEXT: %[[I:.*]] = convert %[[A]] at 0
  // CHECK-NEXT: convert %[[B]] at 0
  // CHECK-NEXT: output "a" %[[H]]
  // CHECK-NEXT: output "a" %[[I]]
  %s = read @w$b slot value at 0 : !tS
  %r = read @w$b slot value at 0 : !tS
  %a = all_gather %s at [0] dim 0 over ["dp"] : !tS -> !tR
  %b = all_gather %r at [0] dim 0 over ["dp"] : !tS -> !tR
  %h = convert %a at 0 : !tR -> !hR
  %i = convert %a at 0 : !tR -> !hR
  %j = convert %b at 0 : !tR -> !hR
  output "a" %h at 0 : !hR
  output "a" %i at 0 : !hR
  output "b" %j at 0 : !hR
}

// Results that nobody uses: instructions stay; reads and views go.
// CHECK-LABEL: piper.cluster @unused_results
piper.cluster @unused_results of @train phase = ordered mesh = @mesh microbatches = 1 {
  // CHECK-NEXT: %[[P:.*]] = read @w$b slot grad at 0
  // CHECK-NEXT: %[[S:.*]] = read @w$b slot value at 0
  // CHECK-NEXT: %[[X:.*]] = input "x" mb 0 at 0
  // CHECK-NEXT: %[[N:.*]] = input "n" mb 0 at 0
  %p = read @w$b slot grad at 0 : !tP
  %s = read @w$b slot value at 0 : !tS
  %x = input "x" mb 0 at 0 : !tV
  %n = input "n" mb 0 at 0 : !nV
  // CHECK-NEXT: run @square$F
  // CHECK-NEXT: run @square$F
  // CHECK-NEXT: launch @square
  // CHECK-NEXT: transfer
  // CHECK-NEXT: all_reduce
  // CHECK-NEXT: all_gather
  // CHECK-NEXT: reduce_scatter
  // CHECK-NEXT: all_to_all
  // CHECK-NEXT: permute
  // CHECK-NEXT: broadcast
  // CHECK-NEXT: accumulate
  // CHECK-NEXT: accumulate
  // CHECK-NEXT: sumsq
  // CHECK-NEXT: update
  // CHECK-NEXT: update
  // CHECK-NEXT: host_wait
  // CHECK-NEXT: write
  // CHECK-NEXT: convert
  // CHECK-NEXT: slice
  // CHECK-NEXT: sum
  // CHECK-NEXT: input
  // CHECK-NEXT: tangent
  // CHECK-NEXT: }
  %0 = run @square$F(%x) mb 0 at 0 : (!tV) -> !tV
  %1 = run @square$F(%x) mb 0 at 0 : (!tV) -> !tV
  %2 = launch @square(%x) mb 0 at 0 : (!tV) -> !tV
  %3 = transfer %x from 0 to 1 mb 0 : !tV
  %4 = all_reduce %p at [0] over ["dp"] : !tP -> !tR
  %5 = all_gather %s at [0] dim 0 over ["dp"] : !tS -> !tR
  %6 = reduce_scatter %p at [0] dim 0 over ["dp"] : !tP -> !tS
  %7 = all_to_all %x at [0] dim 0 over ["dp"] : !tV -> !tV
  %8 = permute %x at [0] shift 1 over ["dp"] : !tV -> !tV
  %9 = broadcast %x at [0] root 0 over ["dp"] : !tV -> !tR
  %10 = accumulate @w$b %p at 0 : !tP -> !tP
  %11 = accumulate @w$b %p at 0 : !tP -> !tP
  %12 = sumsq %s at 0 : (!tS) -> tensor<f32, #P>
  %13 = update @w$b %s at 0 optimizer "train:sgd" : !tS -> !tS
  %14 = update @w$b %s at 0 optimizer "train:sgd" : !tS -> !tS
  %15 = host_wait %n at 0 : !nV -> !piper.sizes
  write @w$b slot value %s at 0 : !tS
  %16 = read @w$b slot value at 0 : !tS
  %17 = convert %9 at 0 : !tR -> !hR
  %18 = slice %9 dim 0 over "dp" at 0 : !tR -> !tS
  %19 = sum %p, %p at 0 : !tP -> !tP
  %20 = input "x" mb 1 at 0 : !tV
  %21 = tangent "loss" coeff 1.0 at 0 -> tensor<f32, #R>
  %22 = axis_index "dp" at 0 : tensor<i64, #V>
}

// A program keeps every instruction of its queues.
// CHECK-LABEL: piper.program @queues
piper.program @queues of @unused_results at 0 {
  // CHECK-NEXT: record
  // CHECK-NEXT: record
  // CHECK-NEXT: recv
  // CHECK-NEXT: recv
  // CHECK-NEXT: send
  // CHECK-NEXT: send
  // CHECK-NEXT: free
  // CHECK-NEXT: }
  %a = record
  %b = record
  %x, %c = recv from 1 mb 0 on @unused after %a : !tV
  %y, %d = recv from 1 mb 0 on @unused after %a : !tV
  %e = send %x to 1 mb 0 on @unused after %c : !tV
  %f = send %x to 1 mb 0 on @unused after %c : !tV
  free %x : !tV
}

// What owns storage is made as often as it is freed; merged, the second
// conversion would be a value that is free already.
// CHECK-LABEL: piper.program @storage
piper.program @storage of @unused_results at 0 {
  // CHECK-NEXT: %[[A:.*]] = read
  // CHECK-NEXT: %[[B:.*]] = convert %[[A]]
  // CHECK-NEXT: free %[[B]]
  // CHECK-NEXT: %[[C:.*]] = convert %[[A]]
  // CHECK-NEXT: free %[[C]]
  // CHECK-NEXT: %[[D:.*]] = slice %[[A]]
  // CHECK-NEXT: free %[[D]]
  // CHECK-NEXT: %[[E:.*]] = slice %[[A]]
  // CHECK-NEXT: free %[[E]]
  // CHECK-NEXT: %[[F:.*]] = input "x" mb 0
  // CHECK-NEXT: free %[[F]]
  // CHECK-NEXT: %[[G:.*]] = input "x" mb 0
  // CHECK-NEXT: %[[H:.*]] = sum %[[G]], %[[G]]
  // CHECK-NEXT: free %[[H]]
  // CHECK-NEXT: %[[I:.*]] = sum %[[G]], %[[G]]
  // CHECK-NEXT: free %[[I]]
  // CHECK-NEXT: %[[J:.*]] = tangent
  // CHECK-NEXT: free %[[J]]
  // CHECK-NEXT: %[[K:.*]] = tangent
  // CHECK-NEXT: free %[[K]]
  // CHECK-NEXT: }
  %a = read @v$b slot value : !tR
  %b = convert %a : !tR -> !hR
  free %b : !hR
  %c = convert %a : !tR -> !hR
  free %c : !hR
  %d = slice %a dim 0 over "dp" : !tR -> !tS
  free %d : !tS
  %e = slice %a dim 0 over "dp" : !tR -> !tS
  free %e : !tS
  %f = input "x" mb 0 : !tV
  free %f : !tV
  %g = input "x" mb 0 : !tV
  %h = sum %g, %g : !tV -> !tV
  free %h : !tV
  %i = sum %g, %g : !tV -> !tV
  free %i : !tV
  %j = tangent "loss" coeff 1.0 -> tensor<f32, #R>
  free %j : tensor<f32, #R>
  %k = tangent "loss" coeff 1.0 -> tensor<f32, #R>
  free %k : tensor<f32, #R>
}

// What a torch op may be decided by its facts. Equal draws are two draws.
// CHECK-LABEL: piper.kernel @facts
piper.kernel @facts(%x: !t, %n: tensor<i64>) -> !t {
  // CHECK-NEXT: torch "my.random"
  // CHECK-NEXT: torch "my.random"
  // CHECK-NEXT: torch "my.mutate"
  // CHECK-NEXT: torch "my.sync"
  // CHECK-NEXT: %[[Y:.*]] = torch "my.pure"
  // CHECK-NEXT: torch "my.add"(%[[Y]], %[[Y]])
  // CHECK-NEXT: return
  %0 = torch "my.random"(%n) facts <random> : (tensor<i64>) -> !t
  %1 = torch "my.random"(%n) facts <random> : (tensor<i64>) -> !t
  torch "my.mutate"(%x) facts <mutating> : (!t) -> ()
  %2 = torch "my.sync"(%x) facts <host_sync> : (!t) -> !t
  %3 = torch "my.pure"(%x) facts <pure> : (!t) -> !t
  %4 = torch "my.pure"(%x) facts <pure> : (!t) -> !t
  %5 = torch "my.view"(%x) facts <view> : (!t) -> !t
  %6 = torch "my.add"(%3, %4) facts <pure> : (!t, !t) -> !t
  return %6 : !t
}
