// An editor gets diagnostics as it types.
// RUN: piper-lsp-server -lit-test < %S/Inputs/session.json | FileCheck %s

// CHECK: "method": "textDocument/publishDiagnostics"
// CHECK: "message": "custom op 'piper.mesh' expected at least 1 rank on axis
