"""Files that deploy a row of a plan: one target a file, each a pure function of one `Deployment`."""
