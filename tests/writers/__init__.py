"""Adopted tables beside the real writers of such tables."""
