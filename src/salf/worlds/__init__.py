"""Who arrives, how far and when: laws of depth, records, and fleets with a clock."""
