"""Check mode: every value that a rank makes is compared with that of a single process.

`check` makes a checker of a call, `checked_call` follows its instructions: what is `known` of each
value, in which `terms` it is named, at which `places` ranks are alike, how large sums of squares
(`norms`) must be, and how large `gaps` may be. `oracle` is what it asks.
"""
