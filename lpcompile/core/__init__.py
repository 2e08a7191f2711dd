"""What the compiler and the runtime both read: plans, schedules, the verifier, methods' records, specs of tensors.

Imports nothing of lpcompile but `errors` and itself.
"""
