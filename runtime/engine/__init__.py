"""The trainer: workers that execute a schedule's instructions, one stage each."""
