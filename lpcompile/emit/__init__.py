"""Programs as folders of readable Python with weights and plan, and back.

`write` emits a folder and `read` loads it; `data` is their common format (`model.json` and the weights), with nested
values by `json_values`. `support.py` and `run_script.py` are templates: they are copied into every emitted folder.

Imports core, passes, runtime, planning and the `Program` that a folder is loaded into.
"""
