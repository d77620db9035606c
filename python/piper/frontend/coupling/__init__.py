"""Whether what a step makes of an example depends on others, or on how many there are.

`check` refuses it. `twins` pairs the ops of two captures, `follow` says what each op does with
examples: by its rule, or by `apart`; `layout` says where in a value examples lie, `found` what came
out. `functions` does the same for backward functions of the user.
"""
