"""A Std model beside its TCP twin, trained and measured alike (paper, Section 6), and the paper's pairs as studies."""
