"""Speed of whole models, of which the paper shows none: time, memory, growth, and where the time goes."""
