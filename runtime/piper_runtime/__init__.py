"""The runtime of Piper: runs per-rank programs. Needs only torch, never imports the compiler."""
