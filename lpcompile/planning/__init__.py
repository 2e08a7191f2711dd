"""From a captured model to a Plan: the compile pipeline and the decisions that need compiler and runtime together.

`pipeline` is the list of passes; `options` what the user asked for; `unit_choice`, `partition` and `arrange` the search
for stages, with `auxnets`, `fit` and `heads`; `plan_rows` the Plan; `replan` a plan for another K or method;
`print_after` and `artefact_text` show artefacts.

May import core, passes and runtime; never the front door or a tool.
"""
