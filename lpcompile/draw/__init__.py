"""Drawing: figures, charts, tables, HTML and terminal text, for all rooms that show something.

`tables` (columns, plans and cuts as text), `terminal` (width and colour), `figure` (drawings as data), `charts`
(figures of curves, bars and timelines), `png`, `html` and `markdown` (figures and tables as files, pages and text),
`graph_file` (graphs as GraphML, DOT and JSON).

Imports core alone. A room passes its data in; draw measures, plans and simulates nothing.
"""
