"""From a captured model to a Plan: the compile pipeline and the decisions that need compiler and runtime together.

`pipeline` is the list of passes; `options` what the user asked for; `unit_choice`, `partition` and `arrange` the search
for stages over a `link`, with the AuxNets and heads of the room `auxiliary`; `micro_choice` the number of
micro-batches, `interaction` whether their samples influence each other; `plan_rows` the Plan, with its sentences
(`choice`, `balance`); `rank_memory` the bytes that a rank keeps; `replan` a plan for another K or method; `print_after`
and `artefact_text` show artefacts.

May import core, passes and runtime; never the front door or a tool.
"""
