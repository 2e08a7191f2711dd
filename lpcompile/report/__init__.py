"""The report of a plan (`inspect --html`): one HTML page with its graph, load, memory, timeline and tables.

`data` collects everything from program and plan, `played` adds the simulator's part, `graph` and `charts` draw the
figures, `page` puts them together with report.html, report.css and report.js.

Imports every room but cli.
"""
