#!/bin/sh
# Interesting, which piper-reduce is told by a status other than 0, is a module with a stream @pp.
piper-opt "$1" | grep -q 'piper.stream @pp' && exit 1
exit 0
