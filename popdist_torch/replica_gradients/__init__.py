"""Code of a program that sees the gradients of one replica, before they are added up.

What such code makes of the parts has to add up to what it would make of the whole, as in one
process. `parameter_hooks` checks hooks of parameters, `activation_hooks` those of activations and
modules, and `own_functions` the backward passes of autograd functions. `multiples` asks code what
it makes of larger gradients; `linearity` sees which operations it calls.
"""
