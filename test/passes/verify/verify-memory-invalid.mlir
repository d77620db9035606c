// Programs whose storages take more memory than there is.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-verify=max-memory=100
// RUN: piper-opt %s -split-input-file --piper-verify -o %t

// 100 bytes are no more than the limit: the state is there all the time, and the
// gradient, as it is written. What is accumulated, reduced and updated in place
// has no storage of its own, nor has what is read; what is freed is gone.

!x = tensor<8xf32, #piper.layout<dp = replicated>>
!p = tensor<8xf32, #piper.layout<dp = partial>>
piper.mesh @mesh [dp = 2 manual]
piper.stream @dp
piper.comm @reduce.dp$0 axes ["dp"] coordinates [0] for @dp
piper.state @w parameter : tensor<8xf32> holders [0]
piper.bucket @w$b [@w] value : !x grad : !p
piper.chunk @a.0$F pass = F stage = 0 (%x: !p, %w: !x) -> !p { return %x : !p }
piper.program @train$0 of @train$cluster at 0 {
  %w = read @w$b slot value : !x
  %x = input "x" mb 0 : !p
  %g = run @a.0$F(%x, %w) mb 0 : (!p, !x) -> !p
  %0 = accumulate @w$b %g : !p -> !p
  free %g : !p
  %h = run @a.0$F(%x, %w) mb 1 : (!p, !x) -> !p
  %1 = accumulate @w$b %h onto %0 : !p -> !p
  free %h : !p
  %t = tangent "loss" coeff 1.0 -> tensor<9xf32>
  %e = record
  %2, %f = all_reduce %1 over ["dp"] on @reduce.dp$0 after %e : !p -> !x, !piper.event
  %3 = update @w$b %2 optimizer "train:sgd" after %f : !x -> !x
}

// -----

// One byte more: the error says where, and what is alive there.

!x = tensor<8xf32>
!s = tensor<5xi1>
piper.mesh @mesh [pp = 1 unrolled]
piper.state @w parameter : !x holders [0]
// expected-note @+2 {{32 bytes are slot value of @w$b}}
// expected-note @+1 {{32 bytes are slot grad of @w$b}}
piper.bucket @w$b [@w] value : !x grad : !x
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %s: !s) -> !x { return %x : !x }
piper.chunk @b.0$F pass = F stage = 0 (%s: !s) -> !s { return %s : !s }
piper.program @train$pp0 of @train$cluster at 0 {
  %w = read @w$b slot value : !x
  %i = input "s" mb 0 : !s
  // expected-note @+1 {{5 bytes are result 0 of 'piper.run' of @b.0$F for microbatch 0}}
  %s = run @b.0$F(%i) mb 0 : (!s) -> !s
  // expected-error @+2 {{expected @train$pp0 to hold at most 100 bytes at once, got 101 bytes at 'piper.run' of @a.0$F for microbatch 0}}
  // expected-note @+1 {{32 bytes are result 0 of 'piper.run' of @a.0$F for microbatch 0}}
  %g = run @a.0$F(%w, %s) mb 0 : (!x, !s) -> !x
  %0 = accumulate @w$b %g : !x -> !x
  free %g, %s : !x, !s
}

// -----

// States alone may be too much: what a coordinate holds counts although the
// program does not use it, and so does a copy in another dtype.

piper.mesh @mesh [pp = 2 unrolled]
piper.state @w parameter : tensor<20xf32> holders [1]
piper.state @v parameter : tensor<12xi64> holders [0]
// expected-note @+2 {{80 bytes are slot value of @w$b}}
// expected-note @+1 {{40 bytes are slot compute of @w$b}}
piper.bucket @w$b [@w] value : tensor<20xf32> compute : tensor<20xbf16> grad : tensor<20xf32>
piper.bucket @v$b [@v] value : tensor<12xi64>
piper.program @eval$pp0 of @eval$cluster at 0 {
}
// expected-error @+1 {{expected @eval$pp1 to hold at most 100 bytes at once, got 120 bytes before its first instruction}}
piper.program @eval$pp1 of @eval$cluster at 1 {
}

// -----

// A state that is read by its own name counts as what a rank holds of it: half.

piper.mesh @mesh [dp = 2 manual]
// expected-note @+1 {{160 bytes are the state of @table}}
piper.state @table buffer : tensor<40x2xf32> layout <dp = shard(0)>
// expected-error @+1 {{expected @train$0 to hold at most 100 bytes at once, got 160 bytes before its first instruction}}
piper.program @train$0 of @train$cluster at 0 {
  %t = read @table : tensor<20x2xf32, #piper.layout<dp = shard(0)>>
}

// -----

// The batch is there for all microbatches, an input that is not split once; its
// parts are views. The five largest storages are listed.

!x = tensor<4xf32>
!m = tensor<2xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x, %m: !m) -> !x { return %x : !x }
// expected-note @+1 {{48 bytes are input 'x' of @train}}
piper.step @train phase = bucketed mesh = @mesh inputs ["x", "mask"] dims [0, -1] microbatches = 3 homes [[0]] (%x: !x, %mask: !m) {
  %0 = run @a.0$F(%x, %mask) : (!x, !m) -> !x
  output "z" %0 : !x
}
piper.cluster @train$cluster of @train phase = lowered mesh = @mesh microbatches = 3 {
  %m = input "mask" mb 0 at 0 : !m
  %x0 = input "x" mb 0 at 0 : !x
  %y0 = run @a.0$F(%x0, %m) mb 0 at 0 : (!x, !m) -> !x
  %x1 = input "x" mb 1 at 0 : !x
  %m1 = input "mask" mb 1 at 0 : !m
  %y1 = run @a.0$F(%x1, %m1) mb 1 at 0 : (!x, !m) -> !x
  %x2 = input "x" mb 2 at 0 : !x
  %m2 = input "mask" mb 2 at 0 : !m
  %y2 = run @a.0$F(%x2, %m2) mb 2 at 0 : (!x, !m) -> !x
  %z = sum %y0, %y1, %y2 at 0 : !x -> !x
  output "z" %z at 0 : !x
}
// expected-note @+1 {{smaller storages take 8 bytes}}
piper.program @train$pp0 of @train$cluster at 0 {
  %m = input "mask" mb 0 : !m
  %x0 = input "x" mb 0 : !x
  // expected-note @+1 {{16 bytes are result 0 of 'piper.run' of @a.0$F for microbatch 0}}
  %y0 = run @a.0$F(%x0, %m) mb 0 : (!x, !m) -> !x
  %x1 = input "x" mb 1 : !x
  %m1 = input "mask" mb 1 : !m
  // expected-note @+1 {{16 bytes are result 0 of 'piper.run' of @a.0$F for microbatch 1}}
  %y1 = run @a.0$F(%x1, %m1) mb 1 : (!x, !m) -> !x
  %x2 = input "x" mb 2 : !x
  %m2 = input "mask" mb 2 : !m
  // expected-note @+1 {{16 bytes are result 0 of 'piper.run' of @a.0$F for microbatch 2}}
  %y2 = run @a.0$F(%x2, %m2) mb 2 : (!x, !m) -> !x
  // expected-error @+2 {{expected @train$pp0 to hold at most 100 bytes at once, got 120 bytes at 'piper.sum'}}
  // expected-note @+1 {{16 bytes are result 0 of 'piper.sum'}}
  %z = sum %y0, %y1, %y2 : !x -> !x
  output "z" %z : !x
  free %m, %x0, %y0, %x1, %m1, %y1, %x2, %m2, %y2, %z : !m, !x, !x, !x, !m, !x, !x, !m, !x, !x
}

// -----

// A dynamic number of rows counts as its bound, of 26 rows here.

!x = tensor<?x1xf32, #piper.layout<ep = varying, bound = 26, expect = 5>>
piper.mesh @mesh [ep = 2 manual]
piper.stream @ep
piper.comm @ep$0 axes ["ep"] coordinates [0] for @ep
piper.program @train$0 of @train$cluster at 0 {
  %n = input "n" mb 0 : tensor<2xi64, #piper.layout<ep = varying>>
  %x = input "x" mb 0 : !x
  %b = record
  %s, %t = host_wait %n, %n : tensor<2xi64, #piper.layout<ep = varying>>, tensor<2xi64, #piper.layout<ep = varying>> -> !piper.sizes, !piper.sizes
  // expected-error @+2 {{expected @train$0 to hold at most 100 bytes at once, got 104 bytes at 'piper.all_to_all' on @ep$0}}
  // expected-note @+1 {{104 bytes are result 0 of 'piper.all_to_all' on @ep$0}}
  %y, %e = all_to_all %x dim 0 sizes %s, %t over ["ep"] on @ep$0 after %b : !x -> !x, !piper.event
}
// -----

// Without a bound the memory of a value is not known; nor if another dim is
// dynamic, or if elements are no numbers.

!x = tensor<?x4xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected a tensor of numbers whose dims are known, dim 0 perhaps by the bound of its layout, got 'tensor<?x4xf32>', whose memory is not known}}
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
}

// -----

!x = tensor<4x?xf32, #piper.layout<ep = varying, bound = 9>>
piper.mesh @mesh [ep = 2 manual]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.program @train$0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected a tensor of numbers whose dims are known, dim 0 perhaps by the bound of its layout}}
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
}

// -----

!x = tensor<4x!piper.event>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+1 {{expected a tensor of numbers whose dims are known}}
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
}

// -----

// No sum of sizes is too large to be compared.

!x = tensor<9223372036854775807x9223372036854775807xf32>
piper.mesh @mesh [pp = 1 unrolled]
piper.chunk @a.0$F pass = F stage = 0 (%x: !x) -> !x { return %x : !x }
piper.program @train$pp0 of @train$cluster at 0 {
  %x = input "x" mb 0 : !x
  // expected-error @+2 {{expected @train$pp0 to hold at most 100 bytes at once, got 18446744073709551615 bytes at 'piper.run' of @a.0$F for microbatch 0}}
  // expected-note @+1 {{18446744073709551615 bytes are result 0 of 'piper.run'}}
  %y = run @a.0$F(%x) mb 0 : (!x) -> !x
  %z = run @a.0$F(%x) mb 1 : (!x) -> !x
  free %y, %z : !x, !x
}
