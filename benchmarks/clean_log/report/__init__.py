"""What runs took: kept, compared, shown."""
