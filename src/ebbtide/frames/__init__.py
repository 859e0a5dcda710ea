"""DataFrame to DataFrame: what the decisions look like on whole tables."""
