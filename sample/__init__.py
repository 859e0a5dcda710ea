"""How the sample log came to be, and how to make it anew."""
