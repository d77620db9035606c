// A tag that names no chunk is a mistake.
// RUN: piper-opt %s -split-input-file -verify-diagnostics --piper-annotate

!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{names no chunk: expected a tag of embed, layer, got "head" for 'lm_head'}}
  piper.do.annotate {"layers.*" = "layer", lm_head = "head"}
}
piper.chunk @embed.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @layer.0$F pass = F (%x: !x) -> !x { return %x : !x }
piper.chunk @layer.1$F pass = F (%x: !x) -> !x { return %x : !x }

// -----

// A tag is a word.
!x = tensor<4xf32>
piper.mesh @mesh [pp = 2 unrolled]
piper.strategy @strategy mesh = @mesh {
  // expected-error @+1 {{names no chunk: expected a tag of layer, got 3 : i64 for 'layers.*'}}
  piper.do.annotate {"layers.*" = 3}
}
piper.chunk @layer.0$F pass = F (%x: !x) -> !x { return %x : !x }
