// Annotations act at capture; here it is checked that each had an effect.
// RUN: piper-opt %s --piper-annotate | FileCheck %s

// Two entries may name one tag; a tag is that of any chunk, of any step.
// CHECK: piper.do.annotate {embed = "embed", "layers.*" = "layer", lm_head = "layer"}
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  piper.do.annotate {embed = "embed", "layers.*" = "layer", lm_head = "layer"}
}
piper.chunk @embed.0$F.eval pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @layer.0$F pass = F (%x: !x) -> !x { return %x : !x }
