"""Questions about hardware that nobody has rented yet: calibration of the cost model. Serves no request."""
