"""Files that deploy a row of a plan. Each is a pure function of one `Deployment`."""
