"""Which way to train is fastest where, over the number of ranks, the batch and the rate of links: `places` simulates
them, `text` shows them as tables, page and JSON.

Imports what `simulate` imports.
"""
