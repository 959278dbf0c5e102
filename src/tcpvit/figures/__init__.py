"""Figures: drawing only. Each function takes numbers and returns a matplotlib figure."""
