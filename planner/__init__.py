"""Plan, simulate, calibrate and deploy on modelled instances. Nothing here serves requests."""
