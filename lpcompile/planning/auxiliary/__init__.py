"""The networks that a program adds to the model, each with its cost.

`auxnets`: an AuxNet for every boundary (derived, recursive or the user's own); `fit`: AuxNets within a measured budget;
`heads`: a head for every stage, for methods whose stages have losses of their own.

May import core and passes; nothing else of `planning`.
"""
