"""Studies: one module per table or figure of the paper, and our own."""
