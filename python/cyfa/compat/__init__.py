"""The signatures of other packages over this one: a program that uses them changes an import.

    cyfa.compat.fla    Cyclic Flow Attention of flash-linear-attention 0.6
"""
