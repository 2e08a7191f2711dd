"""Python and the machine under a program, whatever it compiles or trains.

`atomic_file` (files that a reader sees whole or not at all), `checksum` (of files), `json_file` (that a user named),
`random_state` (of Python, NumPy and torch), `gc_pause` (a pause of Python's garbage collector), `progress` (of long
work, in a terminal).

May import `lpcompile.errors` and itself; nothing here knows a plan or a method.
"""
