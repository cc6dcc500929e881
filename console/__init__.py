"""The console: pages for browsers, over the records that metrics, inventory and planner use."""
