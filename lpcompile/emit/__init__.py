"""Programs as folders of readable Python with weights and plan, and back.

Imports core, passes, runtime and planning.
"""
