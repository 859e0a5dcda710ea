"""What a job is asked for: requests, and what it does on adopted topics."""
