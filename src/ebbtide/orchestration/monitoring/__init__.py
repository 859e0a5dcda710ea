"""What a run tells the outside once it is over: metrics, and notices to a notifier."""
