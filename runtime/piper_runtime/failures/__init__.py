"""What went wrong, and on which rank: hangs, errors and their lines, faults on purpose."""
