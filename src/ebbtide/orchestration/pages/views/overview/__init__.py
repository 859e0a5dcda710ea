"""The first page: its rows, totals and needs."""
