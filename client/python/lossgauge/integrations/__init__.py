"""lossgauge in trainers of others. Each module loads its trainer's package only if it is there."""
