"""The compiler: one file a pass, each a pure function from one artefact to the next. Imports errors and core."""
