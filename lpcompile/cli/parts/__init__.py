"""Parts that commands are made of.

`model`: the flags of `inspect` and `emit`, and the program that they ask for; `outlook` and `report`: the parts of
`inspect` that predict times and that write a page and figures; `files`: files to write, checked before the work.

Imports what `cli` imports, and no command.
"""
