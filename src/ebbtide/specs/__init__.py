"""Each job and each form, declared once: its parameters, how it is run, and what it says."""
